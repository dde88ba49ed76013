"""`ecokv explain` over the real engine and a tiny model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pictures import noise

pytest.importorskip("matplotlib")


@pytest.fixture
def flags(isolated, tiny_llama_path, tiny_mmproj_path) -> tuple[Any, ...]:
    noise(1).save(isolated / "a.png")
    model = ("-m", tiny_llama_path, "--mmproj", tiny_mmproj_path)
    return ("explain", *model, "-t", 1, "-ngl", 0, "-n", 3, "-p", "What is it?", "-a", "a.png")


def test_files_and_answers(ecokv, flags, isolated):
    result = ecokv(*flags, "--budget", "20", "--budgets", "40", "--trace", "t.jsonl", "--json")
    assert result.code == 0, result.err
    record = result.json
    assert [(cut["budget"], cut["pairs"]) for cut in record["cuts"]] == [("20", 20), ("40", 40)]
    assert record["n_image_tokens"] == 36
    assert (isolated / "ecokv-explain" / "explain.html").is_file()
    first = json.loads((isolated / "t.jsonl").read_text().splitlines()[0])
    assert (first["layer"], first["head"], first["cell"], first["kept"]) == (0, 0, 0, True)
    again = ecokv(*flags, "-o", "other")
    assert again.code == 0, again.err
    assert again.out.splitlines()[0] == "What is it?"
    assert [line.split()[0] for line in again.out.splitlines()[2:6]] == [
        "full",
        "50%",
        "20%",
        "10%",
    ]


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (("--budget", "5"), 5, "13"),
        (("--policy", "nothing"), 2, "nothing"),
        (("--policy", "none"), 2, "none"),
        (("-a", "none.png"), 1, "none.png"),
        (("-o", "file/x"), 1, "file"),
        (("--trace", "file/t.jsonl"), 1, "t.jsonl"),
        (("--trace", "."), 1, "directory"),
    ],
)
def test_wrong_input(ecokv, flags, isolated, more, code, told):
    (isolated / "file").write_text("x")
    result = ecokv(*flags, *more)
    assert result.code == code, result.err
    assert told in result.err and "Traceback" not in result.err
    if "--trace" in more:
        assert not list(isolated.glob("ecokv-explain/*"))  # told before the work, not after it


def test_a_recurrent_model(ecokv, isolated, tiny_mamba_path):
    result = ecokv("explain", "-m", tiny_mamba_path, "-ngl", 0, "-p", "What is it? " * 9)
    assert result.code == 4, result.err
    assert "recurrent" in result.err and "Traceback" not in result.err


def test_no_prompt_and_no_projector(ecokv, isolated, tiny_llama_path):
    noise(1).save(isolated / "a.png")
    flags = ("explain", "-m", tiny_llama_path, "-ngl", 0)
    assert ecokv(*flags).code == 2
    result = ecokv(*flags, "-p", "What?", "-a", "a.png")
    assert result.code == 1 and "projector" in result.err
