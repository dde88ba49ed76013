"""The manifest: what is written is read, what is torn or damaged is passed over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecokv_local.caption.manifest import Manifest, Names, body_of, encode_line, read
from ecokv_local.errors import EcokvError, UsageError

ENTRY = {"size": 1, "mtime_ns": 2, "settings": "s", "job": "j", "sha256": "x"}


def done(n: int, file: str = "a.png", **more: Any) -> dict[str, Any]:
    return {"status": "done", "n": n, "file": file, **ENTRY, **more}


def made(n: int, file: str = "a.png") -> dict[str, Any]:
    return {"status": "made", "n": n, "file": file, "write": {"rows": []}, "done": ENTRY}


def write(path: Path, *entries: dict[str, Any]) -> None:
    with Manifest(path) as manifest:
        for entry in entries:
            manifest.add(entry)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, min_size=1))
def test_a_line_is_json_with_the_crc_of_the_rest(entry: dict[str, Any]) -> None:
    line = encode_line(entry)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    body = body_of(line[:-1])
    assert body is not None and json.loads(body) == entry
    assert "crc" in entry or json.loads(line).keys() == entry.keys() | {"crc"}


@given(st.binary(min_size=1, max_size=3), st.integers(0, 200))
def test_a_changed_line_is_noticed(change: bytes, at: int) -> None:
    line = encode_line(done(3))[:-1]
    at %= len(line)
    changed = line[:at] + change + line[at + len(change) :]
    assert changed == line or body_of(changed) is None


def test_the_state_is_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(
        path,
        {"status": "settings", "id": "s", "values": {"prompt": "p"}},
        {"status": "begin", "job": "j", "at": 1},
        made(1),
        done(1),
        made(2, "b.png"),
        {"status": "failed", "file": "c.png", **ENTRY, "error": {"code": "image"}},
    )
    state = read(path)
    assert state.files["a.png"] == done(1) and state.files["c.png"]["status"] == "failed"
    assert state.pending == {2: made(2, "b.png")} and state.last_number == 2
    assert state.settings == {"s": {"prompt": "p"}}
    assert state.open_jobs == {"j": {"a.png", "c.png"}}
    write(path, done(2, "b.png"), {"status": "end", "job": "j", "at": 2})
    state = read(path)
    assert not state.pending and not state.open_jobs and state.n_damaged == 0


def _sample() -> bytes:
    entries = [{"status": "manifest", "version": 1}]
    for n in range(1, 5):
        entries += [made(n, f"{n}.png"), done(n, f"{n}.png")]
    return b"".join(map(encode_line, entries))


@given(st.integers(0, 10_000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_P17_a_torn_tail_costs_one_line(tmp_path: Path, cut: int) -> None:
    """Cut anywhere, read, go on: what was complete before is there, and what comes later too."""
    data = _sample()
    cut %= len(data) + 1
    path = tmp_path / "m.jsonl"
    path.write_bytes(data[:cut])
    whole = data[:cut].count(b'"status":"done"') if data[:cut].endswith(b"\n") else None
    state = read(path)
    complete = [line for line in data[:cut].split(b"\n")[:-1] if b'"status":"done"' in line]
    assert len(state.files) in (len(complete), len(complete) + 1)  # only the line end was cut off
    assert whole is None or len(state.files) == whole
    write(path, made(9, "z.png"), done(9, "z.png"))
    after = read(path)
    assert after.files.keys() == state.files.keys() | {"z.png"} and not after.pending.keys() & {9}
    assert after.n_damaged <= 1


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damage_anywhere_costs_few_lines(tmp_path: Path, at: int, garbage: bytes) -> None:
    data = _sample()
    header = data.index(b"\n") + 1
    at = header + at % (len(data) - header)
    path = tmp_path / "m.jsonl"
    path.write_bytes(data[:at] + garbage + data[at + len(garbage) :])
    files = read(path).files
    assert len(files) >= 2 and all(files[name] == done(int(name[0]), name) for name in files)


def test_another_file_is_not_taken_for_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    for content in (b'{"image": "a.png"}\n', b"hello\n", encode_line({"status": "done"})):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is not a manifest"):
            Manifest(path)
        assert path.read_bytes() == content
    path.write_bytes(encode_line({"status": "manifest", "version": 2}))
    with pytest.raises(UsageError, match="version 2"):
        Manifest(path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    code = "import sys; from ecokv_local.caption.manifest import Manifest; Manifest(sys.argv[1])"
    with Manifest(path):
        other = [sys.executable, "-c", code, str(path)]
        done = subprocess.run(other, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "another run" in done.stderr
        with pytest.raises(EcokvError, match="another run"):
            Manifest(path)
    Manifest(path).close()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written") as caught:
        Manifest(tmp_path / "none" / "m.jsonl")
    assert "--manifest" in caught.value.hint


def test_names_are_relative_and_of_any_bytes(tmp_path: Path) -> None:
    folder = str(tmp_path)
    name = Names(folder)
    for _ in range(2):
        assert name(f"{folder}/a/b.png") == "a/b.png" and name(f"{folder}/b.png") == "b.png"
        assert name(f"{folder}x/b.png") == f"../{os.path.basename(folder)}x/b.png"
        assert name(f"{folder}/a/../b.png") == "b.png"
        assert name(os.path.relpath(f"{folder}/c.png")) == "c.png"
    assert Names("/")("/a.png") == "a.png" and Names("/b")("/a.png") == "../a.png"
    odd = os.fsdecode(b"\xff\xfe.png")
    write(tmp_path / "m.jsonl", done(1, odd))
    assert read(tmp_path / "m.jsonl").files.keys() == {odd}
