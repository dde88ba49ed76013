"""Which pictures there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecokv_local.caption.inputs import PICTURES, Source, gather, read_list
from ecokv_local.errors import UsageError


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def names(folder: Path, *paths: str, **options: object) -> list[str]:
    found = gather([folder / path for path in paths], **options)  # type: ignore[arg-type]
    return [os.path.relpath(source.path, folder) for source in found.sources]


def test_a_folder_in_the_order_of_names(tmp_path: Path) -> None:
    make(tmp_path, "b.png", "a.JPG", "B.webp", "notes.txt", "c.heic", "sub/d.png", "x.mp4")
    assert names(tmp_path, ".") == ["B.webp", "a.JPG", "b.png", "c.heic"]
    everything = ["B.webp", "a.JPG", "b.png", "c.heic", "sub/d.png"]
    assert names(tmp_path, ".", recursive=True) == everything


def test_patterns(tmp_path: Path) -> None:
    make(tmp_path, "a.png", "b.jpg", "c.raw", "sub/d.raw")
    assert names(tmp_path, ".", patterns=["*.raw", "a*"]) == ["a.png", "c.raw"]
    assert names(tmp_path, "*.png", "sub") == ["a.png"]
    assert names(tmp_path, "**/*.raw") == ["c.raw", "sub/d.raw"]
    with pytest.raises(UsageError, match="nothing matches"):
        names(tmp_path, "*.gif")


def test_each_picture_once_in_the_order_given(tmp_path: Path) -> None:
    make(tmp_path, "a.png", "b.png", "c.png")
    assert names(tmp_path, "c.png", ".", "a.png") == ["c.png", "a.png", "b.png"]


def test_P18_hidden_files_and_litter_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg", "._a.jpg", ".b.png", ".AppleDouble/a.jpg", "Thumbs.db", ".DS_Store")
    make(tmp_path, "__MACOSX/a.jpg", "@eaDir/a.jpg", "sub/.hidden/x.png", "desktop.ini")
    assert names(tmp_path, ".", recursive=True) == ["a.jpg"]
    assert names(tmp_path, "._a.jpg", "Thumbs.db", "a.jpg") == ["a.jpg"]  # a shell's pattern
    assert gather([tmp_path / "._a.jpg", tmp_path]).n_hidden >= 2
    shown = names(tmp_path, ".", recursive=True, include_hidden=True)
    assert shown == ["._a.jpg", ".b.png", "a.jpg", ".AppleDouble/a.jpg", "sub/.hidden/x.png"]


def test_links(tmp_path: Path) -> None:
    make(tmp_path, "photos/a.png")
    (tmp_path / "photos" / "loop").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "b.png").symlink_to(tmp_path / "photos" / "a.png")
    assert names(tmp_path, "photos", recursive=True) == ["photos/a.png", "photos/b.png"]
    (tmp_path / "way").symlink_to(tmp_path / "photos")
    assert names(tmp_path, "way") == ["way/a.png", "way/b.png"]


def test_what_is_not_there(tmp_path: Path) -> None:
    for path, hint in (("none", "check the path"), ("https://example.org/a.png", "download")):
        with pytest.raises(UsageError, match="no such file") as caught:
            gather([path])
        assert hint in caught.value.hint
    assert gather(listed=[Source("none.png")]).sources == [Source("none.png")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    make(tmp_path, "a/a.png", "b/b.png")
    (tmp_path / "a").chmod(0)
    found = gather([tmp_path], recursive=True)
    assert len(found.sources) == 1 and "a: cannot be read" in found.warnings[0]


def test_lists() -> None:
    plain = b"\xef\xbb\xbfa b.png\r\n\n#c.png\r\n caf\xc3\xa9.png\n\xff.png"
    paths = [source.path for source in read_list(plain, "list.txt")]
    assert paths == ["a b.png", "#c.png", " café.png", os.fsdecode(b"\xff.png")]
    assert [s.path for s in read_list(b"a\nb.png\0c.png\0", "-")] == ["a\nb.png", "c.png"]
    lines = b'{"image": "a.png", "prompt": "Why?"}\n\n{"file_name": "b.png", "text": "old"}\n'
    assert read_list(lines, "sub/list.jsonl") == [
        Source("a.png", "Why?"),
        Source("sub/b.png"),
    ]


@pytest.mark.parametrize(
    "line",
    ["{", '{"a": 1}', '{"image": 3}', '{"image": "a", "path": "b"}', '{"image":"a","prompt":""}'],
)
def test_lines_of_a_list_that_say_nothing(line: str) -> None:
    with pytest.raises(UsageError, match=r"list\.jsonl:2: "):
        read_list(b'{"image": "a.png"}\n' + line.encode(), "list.jsonl")
    with pytest.raises(UsageError, match="listed twice"):
        gather(listed=[Source("a.png", "one"), Source("./a.png", "two")])


@given(st.lists(st.text(st.characters(exclude_characters="\0\n\r", codec="utf-8"), min_size=1)))
def test_any_name_survives_a_list_that_ends_names_with_nul(paths: list[str]) -> None:
    data = b"".join(path.encode() + b"\0" for path in paths)
    kept = [path for path in paths if path.strip(" \t\v\f")]
    assert [source.path for source in read_list(data, "-")] == kept or not kept


def test_every_ending_is_lower_case() -> None:
    assert all(end == end.lower() and end.startswith(".") for end in PICTURES)
