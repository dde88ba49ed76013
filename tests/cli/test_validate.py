"""`ecokv validate` over the real engine and tiny models: tables, JSON, exit codes."""

from __future__ import annotations

from typing import Any

import pytest
from real import SCENE

from ecokv_local import inspection

pytest.importorskip("numba")

TEXT = "Hello there, what is going on in this world of ours? " * 4


@pytest.fixture
def flags(tiny_llama_path) -> tuple[Any, ...]:
    return ("validate", "-m", tiny_llama_path, "-t", 1, "-ngl", 0, "-c", 512)


@pytest.fixture
def broken(monkeypatch):
    """Native code whose attention of head 1 of layer 1 is off."""
    real = inspection.features

    def features(*args, **kwargs):
        arrays = real(*args, **kwargs)
        arrays["attn"][1, 1] *= 1.01
        return arrays

    monkeypatch.setattr(inspection, "features", features)


def test_agreement_is_a_table_and_0(ecokv, flags):
    result = ecokv(*flags, "-p", TEXT)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert "tokens, 8 queries vote, cache f16/f16" in lines[0]
    assert lines[1].split()[:4] == ["layer", "heads", "scale", "|k|"]
    assert [line.split()[:3] for line in lines[2:4]] == [
        ["0", "4/2", "0.125"],
        ["1", "4/2", "0.125"],
    ]
    assert lines[2].split()[-5:] == ["equal"] * 4 or lines[2].count("equal") == 4
    assert lines[-1].startswith("ok: native code and reference agree")
    assert "\x1b" not in result.out and "!" not in "".join(lines[1:])


def test_json_is_one_object(ecokv, flags, tiny_mmproj_path):
    result = ecokv(
        *flags, "--mmproj", tiny_mmproj_path, "-a", SCENE, "--json", "--policy", "all",
        "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on", "--budget", 40, "--window", 6, stdin=b"What?",
    )  # fmt: skip
    data = result.json
    assert result.code == 0 and data["ok"] and data["first_difference"] is None
    assert data["n_image_tokens"] == 36 and data["n_query"] == 6
    assert data["layers"][0]["tolerances"]["attn"] == 1e-3
    assert {"ecokv", "snapkv", "random"} <= {policy["policy"] for policy in data["policies"]}
    assert all(policy["budget"] == 40 for policy in data["policies"])


def test_a_mismatch_is_1_with_the_first_difference(ecokv, flags, broken):
    result = ecokv(*flags, "-p", TEXT)
    assert result.code == 1 and "error" not in result.err
    report = result.out[result.out.index("mismatch: features") :]
    assert "layer 1, KV head 1, row 0 (position 0)" in report and "what       attn" in report
    assert "attention of head 1 alone" in report and "1 of 2 differ" in report
    assert "1.0e-02!" in result.out and "ok: " not in result.out


def test_a_mismatch_as_json(ecokv, flags, broken):
    result = ecokv(*flags, "-p", TEXT, "--json")
    first = result.json["first_difference"]
    assert result.code == 1 and result.json["ok"] is False
    assert (first["layer"], first["head"], first["what"]) == (1, 1, "attn")
    assert first["native"] == pytest.approx(1.01 * first["reference"], rel=1e-4)


def test_a_terminal_gets_a_drawn_table(ecokv, flags, broken, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = ecokv(*flags, "-p", TEXT, tty=True)
    assert result.code == 1 and "─" in result.out and "0.125" in result.out
    assert "mismatch: features" in result.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-p", "Hi", "--policy", "none"), 2, "evicts nothing to validate"),
        (("-p", "Hi", "--policy", "ekocv"), 2, "did you mean ecokv?"),
        (("-p", "Hi", "--budget", "0.5"), 2, "write 50%"),
        (("-p", "Hi", "--budget", "5"), 5, "below 13"),
        (("-p", TEXT * 9), 5, "--ctx-size"),
        ((), 2, "there is no prompt"),
    ],
)
def test_mistakes(ecokv, flags, arguments, code, words):
    result = ecokv(*flags, *arguments)
    assert result.code == code and words in result.err and result.out == "", result


def test_a_memory_that_cannot_be_evicted(ecokv, tiny_mamba_path):
    result = ecokv("validate", "-m", tiny_mamba_path, "-p", "Hi", "-t", 1)
    assert result.code == 4 and result.out == ""


def test_without_numba(ecokv, flags, monkeypatch):
    from ecokv_local.validate import run

    monkeypatch.setattr(run, "find_spec", lambda name: None)
    result = ecokv(*flags, "-p", "Hi")
    assert result.code == 2 and "needs the package numba" in result.err
    assert 'pip install "ecokv-local[validate]"' in result.err


def test_a_table_of_the_settings_file_for_each_command(ecokv, flags, isolated):
    (isolated / "ecokv.toml").write_text('[validate]\npolicy = "all"\n[chat]\nsystem = "Brief."\n')
    result = ecokv(*flags, "-p", TEXT, "--json")
    assert result.code == 0 and len(result.json["policies"]) > 3
