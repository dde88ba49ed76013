"""`ecokv eval` over the real engine and a tiny model: tables, files, exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pictures import noise

pytest.importorskip("matplotlib")
pytest.importorskip("scipy")


@pytest.fixture
def flags(tiny_llama_path, tiny_mmproj_path) -> tuple[Any, ...]:
    model = ("-m", tiny_llama_path, "--mmproj", tiny_mmproj_path)
    return ("eval", *model, "-t", 1, "-ngl", 0, "-c", 512, "--budgets", "30%,60%")


@pytest.fixture
def own(isolated):
    """Three items; the picture of the third is missing."""
    for i in range(2):
        noise(i).save(isolated / f"{i}.png")
    lines = [
        {"image": f"{i}.png", "question": "What?", "answers": ["x"], "max_tokens": 3}
        for i in range(3)
    ]
    file = isolated / "own.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_own_items_with_a_missing_picture(ecokv, flags, own, isolated):
    result = ecokv(*flags, own, "--policies", "ecokv,random", "--json")
    assert result.code == 3, result.err
    assert list(result.json["errors"]) == ["line 3"] and "2.png" in result.err
    rows = [row for row in result.json["rows"] if row["kind"] == "all"]
    assert [(row["policy"], row["budget"], row["n"]) for row in rows] == [
        ("full", "100%", 2),
        ("ecokv", "30%", 2),
        ("ecokv", "60%", 2),
        ("random", "30%", 2),
        ("random", "60%", 2),
    ]
    folder = isolated / "ecokv-eval"
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "report.html").read_text()
    assert json.loads((folder / "results.json").read_text())["rows"] == result.json["rows"]
    (answers,) = folder.glob("answers-*.jsonl")
    before = answers.read_bytes()
    noise(2).save(isolated / "2.png")  # mended: only this one is answered
    again = ecokv(*flags, own, "--policies", "ecokv,random")
    assert again.code == 0, again.err
    assert answers.read_bytes().startswith(before)
    assert len(answers.read_bytes().splitlines()) == 1 + 3 * 5
    assert again.out.splitlines()[1].split()[:4] == ["task", "policy", "budget", "when"]


def test_equal_bytes(ecokv, flags, own):
    result = ecokv(
        *flags, own, "--cache-types", "f16,q8_0", "--equal-bytes", "--policies", "ecokv",
        "--budgets", "53.2%,30%", "-fa", "on", "--json",
    )  # fmt: skip
    assert result.code == 3, result.err
    rows = {(row["cache"], row["budget"]) for row in result.json["rows"]}
    assert rows == {
        ("f16/f16", "100%"),
        ("f16/f16", "53.2%"),
        ("f16/f16", "30%"),
        ("q8_0/q8_0", "100%"),
        ("q8_0/q8_0", "56.47%"),
    }


def test_before_and_after_the_question(ecokv, flags, own):
    result = ecokv(*flags, own, "--query-aware", "both", "--json")
    assert {row["when"] for row in result.json["rows"]} == {"-", "after", "before"}
    result = ecokv(*flags, own, "--as-chat", "--json")
    assert {row["when"] for row in result.json["rows"]} == {"-", "chat"}


def test_pick_names_a_budget(ecokv, flags, own):
    result = ecokv(*flags, own, "--pick", "99%")
    assert result.code == 3, result.err
    assert "own: no budget of the list keeps 0.99 of the full score" in result.out


def test_made_texts_need_no_projector(ecokv, tiny_llama_path):
    flags = ("eval", "-m", tiny_llama_path, "-t", 1, "-ngl", 0, "--budgets", "50%")
    result = ecokv(*flags, "--tasks", "text=2", "--json")
    assert result.code == 0, result.err
    assert {row["task"] for row in result.json["rows"]} == {"text"}
    result = ecokv(*flags, "--tasks", "scenes=2")
    assert result.code == 2 and "--mmproj" in result.err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--policies", "ecokv,nothing"), "nothing"),
        (("--policies", "ecokv,,random"), "empty place"),
        (("--policies", "ecokv,ecokv"), "twice"),
        (("--baseline", "tova"), "tova"),
        (("--tasks", "colors"), "colors"),
        (("--tasks", "text=0"), "out of range"),
        (("--pick", "0.99"), "99%"),
        (("--cache-types", "q3"), "q3"),
        (("--query-aware", "maybe"), "maybe"),
    ],
)
def test_wrong_flags(ecokv, flags, more, told):
    result = ecokv(*flags, *more)
    assert result.code == 2, result.err
    assert told in result.err and "Traceback" not in result.err


def test_a_budget_below_the_smallest(ecokv, flags, own):
    result = ecokv(*flags, own, "--budgets", "5")
    assert result.code == 5 and "13" in result.err


def test_a_place_that_cannot_be_written(ecokv, flags, own, isolated):
    (isolated / "file").write_text("x")
    result = ecokv(*flags, own, "-o", "file/x")
    assert result.code == 1 and "file" in result.err


def test_a_recurrent_model(ecokv, tiny_mamba_path):
    result = ecokv("eval", "-m", tiny_mamba_path, "-ngl", 0, "--tasks", "text=1")
    assert result.code == 4, result.err
