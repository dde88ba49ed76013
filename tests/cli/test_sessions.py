"""`ecokv read`, `--session`, `/save` and `/load` over a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import ecokv_local
from ecokv_cli.output import Output
from ecokv_cli.repl import Repl
from ecokv_cli.settings import Settings


@pytest.fixture
def model(tiny_llama_path: Path, tiny_mmproj_path: Path) -> list[str]:
    return ["-m", str(tiny_llama_path), "--mmproj", str(tiny_mmproj_path), "-t", "1", "-c", "512"]


def test_documents_are_read_once_and_asked_again_and_again(
    ecokv: Any, model: list[str], isolated: Path
) -> None:
    Image.new("RGB", (96, 96), "red").save(isolated / "a.png")
    (isolated / "notes.txt").write_text("Notes. " * 40)
    done = ecokv("read", "a.png", "notes.txt", "-o", "x.ekv", "--budget", "48", "--json", *model)
    assert done.code == 0, done.err
    assert (done.json["n_kept"], done.json["n_image_tokens"], done.json["file"]) == (
        48,
        36,
        "x.ekv",
    )
    before = (isolated / "x.ekv").read_bytes()
    assert done.json["file_bytes"] == len(before)
    asked = [
        ecokv("chat", "--session", "x.ekv", "-p", "What?", "-n", "5", "--json", *model).json
        for _ in range(2)
    ]
    assert asked[0]["text"] == asked[1]["text"] and asked[0]["n_prompt"] < 40
    assert asked[0]["budget"] == "48" and not asked[0]["warnings"]
    assert (isolated / "x.ekv").read_bytes() == before


def test_a_flag_that_needs_the_budget_of_the_session_is_told(
    ecokv: Any, model: list[str], isolated: Path
) -> None:
    (isolated / "notes.txt").write_text("Notes. " * 40)
    ask = ("chat", "--session", "x.ekv", "--policy", "snapkv", "-p", "What?", "-n", "2", "--json")
    for given, n_warnings in ((["--budget", "48"], 0), ([], 1)):
        assert ecokv("read", "notes.txt", "-o", "x.ekv", *given, *model).code == 0
        warnings = ecokv(*ask, *model).json["warnings"]
        assert len(warnings) == n_warnings, warnings
    assert "--policy has no effect without --budget" in warnings[0]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["read", "-o", "x.ekv"], 2, "there is nothing to read"),
        (["read", "notes.txt"], 2, "-o is missing"),
        (["read", "none.txt", "-o", "x.ekv"], 2, "none.txt: cannot be read"),
        (["read", "junk.bin", "-o", "x.ekv"], 2, "junk.bin: is neither a picture nor UTF-8 text"),
        (["chat", "--session", "none.ekv", "-p", "Hi"], 1, "none.ekv: cannot be read"),
        (["chat", "--session", "notes.txt", "-p", "Hi"], 1, "notes.txt: not a session file"),
        (["chat", "--session", "x.ekv", "-s", "Be.", "-p", "Hi"], 2, "its own system prompt"),
    ],
)
def test_what_cannot_work_is_told(
    ecokv: Any, model: list[str], isolated: Path, arguments: list[str], code: int, words: str
) -> None:
    (isolated / "notes.txt").write_text("Some notes.")
    (isolated / "junk.bin").write_bytes(b"\0\1\2\3" * 20)
    done = ecokv(*arguments, "--json", *model)
    assert done.code == code and words in done.error["message"] and done.error["hint"]
    assert not (isolated / "x.ekv").exists()


@pytest.fixture
def repl(model: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Repl]:
    with ecokv_local.Engine(model[1], model[3], threads=1, n_ctx=512) as engine:
        session = engine.session(eviction=ecokv_local.EvictionConfig(budget=48))
        yield Repl(engine, session, Settings(), Output(), reader=object())


def test_save_and_load_in_a_conversation(repl: Repl, isolated: Path, capsys: Any) -> None:
    repl.max_tokens = 5
    repl._do("Tell me something long, please, with many words in it.")
    repl._do("/save talk.ekv")
    position, messages = repl.session.n_position, list(repl.session.messages)
    repl._do("Another question.")
    repl._do('/load "talk.ekv"')
    assert (repl.session.n_position, repl.session.messages) == (position, messages)
    assert str(repl.eviction.budget) == "48"
    running = repl.session
    (isolated / "bad.ekv").write_bytes((isolated / "talk.ekv").read_bytes()[:-1])
    with pytest.raises(ecokv_local.EcokvError, match="truncated"):
        repl._do("/load bad.ekv")
    assert repl.session is running and running.n_position == position
    repl._do("Another question.")
    assert len(repl.session.messages) == 4
    for wrong in ("/save", "/load", "/load a b"):
        with pytest.raises(ecokv_local.EcokvError, match="needs one file"):
            repl._do(wrong)
