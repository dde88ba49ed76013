"""`ecokv analyze` over the real engine and a tiny model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pictures import noise

pytest.importorskip("matplotlib")
pytest.importorskip("scipy")


@pytest.fixture
def flags(isolated, tiny_llama_path, tiny_mmproj_path) -> tuple[Any, ...]:
    noise(1).save(isolated / "a.png")
    model = ("-m", tiny_llama_path, "--mmproj", tiny_mmproj_path)
    return ("analyze", *model, "-t", 1, "-ngl", 0, "--policies", "ecokv,random", "--budgets", "40%")


def test_the_users_own_prompt(ecokv, flags, isolated):
    result = ecokv(*flags, "-p", "What is it?", "-a", "a.png", "--json")
    assert result.code == 0, result.err
    record = result.json
    assert (record["n_prompts"], record["n_image_tokens"]) == (1, 36)
    assert [(k["policy"], k["budget"]) for k in record["kept"]] == [
        ("ecokv", "40%"),
        ("random", "40%"),
    ]
    saved = json.loads((isolated / "ecokv-analysis" / "analysis.json").read_text())
    assert saved == {key: value for key, value in record.items() if key != "files"}


def test_made_prompts(ecokv, flags):
    result = ecokv(*flags, "--prompts", 2, "-o", "x")
    assert result.code == 0, result.err
    assert "2 made prompts" in result.out.splitlines()[0]


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (("--policies", "ecokv,nothing"), 2, "nothing"),
        (("--budgets", "40"), 0, ""),
        (("--budgets", "x%"), 2, "x%"),
        (("--budgets", "5"), 5, "13"),
        (("-a", "a.png"), 2, "-p"),
        (("-p", "What?", "-a", "none.png"), 1, "none.png"),
        (("--prompts", "0"), 2, "0"),
    ],
)
def test_other_input(ecokv, flags, more, code, told):
    result = ecokv(*flags, *(() if "-p" in more or "-a" in more else ("--prompts", 1)), *more)
    assert result.code == code, result.err
    assert told in result.err and "Traceback" not in result.err


def test_a_recurrent_model(ecokv, tiny_mamba_path):
    result = ecokv("analyze", "-m", tiny_mamba_path, "-ngl", 0, "--prompts", 1)
    assert result.code == 4, result.err
