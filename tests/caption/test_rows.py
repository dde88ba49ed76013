"""JSONL and CSV: every row once and whole."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecokv_local.caption.rows import COLUMNS, Rows
from ecokv_local.errors import UsageError

RECORD: dict[str, Any] = {"finish_reason": "stop", "warnings": ["w"], "error": None, "n_kept": 3}
texts = st.text(st.characters(codec="utf-8"), max_size=30)


def rows_of(path: Path) -> Rows:
    rows = Rows(str(path))
    rows.load()
    return rows


def read(path: Path) -> dict[str, str]:
    """Names and texts, by the standard library alone."""
    if path.suffix == ".jsonl":
        entries = [json.loads(line) for line in path.read_text().split("\n") if line]
    else:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            entries = list(csv.DictReader(file))
    assert len({entry["file_name"] for entry in entries}) == len(entries)
    return {entry["file_name"]: entry["text"] for entry in entries}


@pytest.mark.parametrize("end", ["jsonl", "csv"])
@given(st.dictionaries(texts.filter(lambda t: "\0" not in t and "/" not in t), texts, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_and_name_come_back(tmp_path: Path, end: str, captions: dict[str, str]) -> None:
    path = tmp_path / f"out.{end}"
    path.unlink(missing_ok=True)
    rows = rows_of(path)
    rows.prepare()
    expected = {}
    for name, text in captions.items():
        picture = str(tmp_path / f"x{name}.png")
        rows.append(rows.encode(picture, "p", RECORD | {"text": text}))
        expected[rows.name(picture)] = text
    rows.close()
    assert rows_of(path).names == expected.keys()
    if end == "jsonl":
        assert read(path) == expected
    else:
        with path.open(newline="", encoding="utf-8") as file:
            found = dict(tuple(row[:3:2]) for row in list(csv.reader(file))[1:])
        assert found == {name: text.replace("\0", "") for name, text in expected.items()}


@pytest.mark.parametrize("end", ["jsonl", "csv"])
def test_P17_a_row_is_completed_from_every_point_at_which_it_was_torn(
    tmp_path: Path, end: str
) -> None:
    path = tmp_path / f"out.{end}"
    rows = rows_of(path)
    rows.prepare()
    one, two, three = (
        rows.encode(str(tmp_path / f"{i}.png"), "p", RECORD | {"text": f'text "{i}"\nline, é'})
        for i in range(3)
    )
    rows.append(one)
    at, head = rows.size, path.read_bytes()
    for cut in range(len(two) + 1):
        rows.close()
        path.write_bytes(head + two[:cut])
        rows = rows_of_unread(path)
        rows.complete(two, at)
        assert path.read_bytes() == head + two
    rows.complete(two, at)
    rows.append(three)
    rows.complete(two, at)  # others have followed
    assert path.read_bytes() == head + two + three
    path.write_bytes(head[:-5])  # somebody edited it
    rows_of_unread(path).complete(two, at)
    assert path.read_bytes() == head[:-5] + b"\n" + two
    path.unlink()
    rows_of_unread(path).complete(two, at)
    assert path.read_bytes() == two


def rows_of_unread(path: Path) -> Rows:
    return Rows(str(path))


def test_P17_a_torn_header_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    rows = rows_of(path)
    rows.prepare()
    header = path.read_bytes()
    for cut in range(len(header) + 1):
        path.write_bytes(header[:cut])
        rows = rows_of(path)
        rows.prepare()
        rows.close()
        assert path.read_bytes() == header


@pytest.mark.parametrize("end", ["jsonl", "csv"])
def test_of_several_rows_the_last_one_stays(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"out.{end}"
    rows = rows_of(path)
    rows.prepare()
    for i, text in ((0, "old"), (1, "one"), (0, "new\nline")):
        rows.append(rows.encode(str(tmp_path / f"{i}.png"), "p", RECORD | {"text": text}))
    rows = rows_of(path)
    assert rows.has_doubles
    rows.compact()
    assert read(path) == {"1.png": "one", "0.png": "new\nline"}
    assert not rows_of(path).has_doubles


def test_files_of_another_kind_are_left_alone(tmp_path: Path) -> None:
    for name, content in (
        ("a.jsonl", '{"file_name": "x", "text": "y"}\nhello\n'),
        ("b.jsonl", '{"image": "x"}\n'),
        ("a.csv", "name,caption\nx,y\n"),
        ("b.csv", ",".join(COLUMNS) + "\nx,y\n"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match=name):
            rows_of(tmp_path / name)
        assert (tmp_path / name).read_text() == content
    with pytest.raises(UsageError, match="does not exist"):
        Rows(str(tmp_path / "none" / "a.csv"))


def test_names_are_seen_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    rows = Rows(str(tmp_path / "sub" / "a.jsonl"))
    assert rows.name(str(tmp_path / "sub" / "x" / "1.png")) == "x/1.png"
    assert rows.name(str(tmp_path / "1.png")) == "../1.png"
    odd = os.fsdecode(b"\xff.png")
    for name in ("a.jsonl", "a.csv"):
        rows = rows_of(tmp_path / name)
        rows.prepare()
        rows.append(rows.encode(str(tmp_path / odd), "p", RECORD | {"text": "t"}))
        assert rows_of(tmp_path / name).names == {odd}
