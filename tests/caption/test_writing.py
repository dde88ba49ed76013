"""Files are whole or not there."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ecokv_local.caption import writing
from ecokv_local.caption.writing import append_bytes, replace_file, unfinished_name


def test_replace(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content in (b"one\n", b"", b"x" * 200_000):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_permissions_are_kept_and_links_followed(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "sub" / "link.txt"
    path.write_text("old")
    path.chmod(0o640)
    link.parent.mkdir()
    link.symlink_to(path)
    replace_file(link, b"new")
    assert link.is_symlink() and path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_new_files_have_the_usual_permissions(tmp_path: Path) -> None:
    replace_file(tmp_path / "a.txt", b"new")
    (tmp_path / "b.txt").touch()
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


def test_what_a_killed_run_left_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    Path(unfinished_name(path)).write_bytes(b"half" * 100)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new" and len(list(tmp_path.iterdir())) == 1


def test_the_longest_name_has_an_unfinished_one(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 125 + ".txt")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_P17_a_failure_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing.os, call, full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_P17_what_was_added_is_taken_off_when_the_disk_is_full(tmp_path: Path) -> None:
    """With a limit of the system on the size of files, in a process of its own."""
    code = """
import os, resource, sys
from ecokv_local.caption.writing import append_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND)
append_bytes(handle, b"a" * 900)
try:
    append_bytes(handle, b"b" * 900)
except OSError as error:
    print(error.errno)
append_bytes(handle, b"c" * 100)
"""
    path = tmp_path / "rows"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == errno.EFBIG
    assert path.read_bytes() == b"a" * 900 + b"c" * 100


def test_appending_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(writing, "flush", flushed.append)
    handle = os.open(tmp_path / "rows", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    append_bytes(handle, b"row\n")
    os.close(handle)
    assert flushed == [handle]
