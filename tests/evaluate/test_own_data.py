"""The user's own test set: what is understood, and what is told of what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ecokv_local.errors import EcokvError, UsageError
from ecokv_local.evaluate.data import load_items


def file_of(tmp_path: Path, *entries: Any) -> Path:
    path = tmp_path / "own.jsonl"
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


GOOD = {"image": "a.png", "question": "What?", "answers": ["red", "dark red"]}


def test_all_fields(tmp_path: Path) -> None:
    more = {"images": ["a.png", "b.png"], "question": "Q", "answer": 41.5, "metric": "relaxed"}
    more |= {"text": "Before.", "kind": "sum", "id": "x7", "max_tokens": 9}
    first, second = load_items(file_of(tmp_path, GOOD, "", more))
    assert first.images() == (tmp_path / "a.png",) and first.score("Dark red.") == 1
    assert second.answers == ("41.5",) and second.score("42") == 1
    assert (second.text, second.kind, second.max_tokens) == ("Before.", "sum", 9)
    assert "x7" in second.name and "line 3" in second.name


def test_another_picture_is_another_item(tmp_path: Path) -> None:
    keys = []
    for data in (b"one", b"two", b"one"):
        (tmp_path / "a.png").write_bytes(data)
        keys.append(load_items(file_of(tmp_path, GOOD))[0].key)
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{not json", ":2: not JSON"),
        ([1], "not an object"),
        ({**GOOD, "answr": 1}, "answr"),
        ({"image": "a.png", "question": "Q"}, "answers"),
        ({**GOOD, "answers": []}, "answers"),
        ({**GOOD, "answers": [None]}, "answers"),
        ({**GOOD, "question": " "}, "question"),
        ({**GOOD, "metric": "bleu"}, "bleu"),
        ({**GOOD, "max_tokens": 0}, "max_tokens 0"),
        ({**GOOD, "images": ["b.png"]}, "image and images"),
    ],
)
def test_a_line_that_is_not_understood(tmp_path: Path, entry: Any, told: str) -> None:
    with pytest.raises(UsageError) as error:
        load_items(file_of(tmp_path, GOOD, entry))
    assert told in error.value.message and "own.jsonl:2" in error.value.message


def test_no_file_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(EcokvError, match=r"none\.jsonl"):
        load_items(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="no item"):
        load_items(file_of(tmp_path, ""))
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        load_items(tmp_path / "b.jsonl")
