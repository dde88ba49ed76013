"""File names as people type them."""

from __future__ import annotations

import os

import pytest

from ecokv_cli import paths

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a backslash is no escape there")


@pytest.fixture(autouse=True)
def folder(isolated, monkeypatch):
    monkeypatch.setenv("HOME", str(isolated))
    for name in ("a b.png", "a b'c.png", "[slug] [b].png", "übel.png", ".hidden.png", "plain.png"):
        (isolated / name).touch()
    (isolated / "sub dir").mkdir()
    (isolated / "sub dir" / "in.png").touch()
    return isolated


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("", []),
        ("plain.png", ["plain.png"]),
        ("a b.png", ["a b.png"]),
        (" a b'c.png ", ["a b'c.png"]),
        ('"a b.png" plain.png', ["a b.png", "plain.png"]),
        ("'a b.png'", ["a b.png"]),
        ("a\\ b.png plain.png", ["a b.png", "plain.png"]),
        ("a\\ b\\'c.png", ["a b'c.png"]),
        ("[slug] [b].png", ["[slug] [b].png"]),
        ('"unclosed x', ["unclosed x"]),
        ("none such", ["none", "such"]),
        ("trailing\\", ["trailing\\"]),
    ],
)
def test_split(line, names):
    assert paths.split(line) == names


def test_home(folder):
    assert paths.split("~/plain.png") == [str(folder / "plain.png")]
    assert paths.split("~/a b.png") == [str(folder / "a b.png")]


def completed(line):
    """Every line that Tab could make of `line`."""
    length = paths.fragment_length(line)
    return [line[: len(line) - length] + found.text for found in paths.complete(line)]


@pytest.mark.parametrize(
    ("line", "results"),
    [
        ("pl", ["plain.png"]),
        ("a", ["a\\ b\\'c.png", "a\\ b.png"]),
        ("a\\ b.", ["a\\ b.png"]),
        ('"a b.', ['"a b.png"']),
        ("'sub d", ["'sub dir/"]),
        ("'sub dir/", ["'sub dir/in.png'"]),
        ("sub", ["sub\\ dir/"]),
        ("sub\\ dir/i", ["sub\\ dir/in.png"]),
        ("[", ["[slug]\\ [b].png"]),
        ("ü", ["übel.png"]),
        (".h", [".hidden.png"]),
        ("~/pl", ["~/plain.png"]),
        ("plain.png su", ["plain.png sub\\ dir/"]),
        ("nothing", []),
        ("no/folder/", []),
    ],
)
def test_complete(line, results):
    assert completed(line) == results


@pytest.mark.parametrize("line", ["pl", "a\\ b.", '"a b.', "[", "ü", "~/pl", "sub\\ dir/i"])
def test_what_is_completed_is_what_is_read(line):
    assert all(os.path.exists(name) for name in paths.split(completed(line)[0]))


def test_complete_nothing_lists_all_but_hidden():
    assert len(paths.complete("")) == 6
