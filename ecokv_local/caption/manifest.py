"""What happened to every picture: JSON lines that are only ever added to, with a CRC each.

The manifest is also the log that makes captions exactly-once. For one picture, in this order:

1. ``made``: the caption and what will be written where; flushed to the disk.
2. the outputs: sidecar, then rows; each flushed.
3. ``done``; flushed together with the next ``made``, and at the end.

A run that was killed after 1 is completed by the next one, without the model: what of the outputs
is there is decided by their content (``recovery``). After 2 it is found complete. Before 1 the
picture was never captioned. A line that was being written when the machine stopped has a wrong
CRC, or no end, and does not count.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ecokv_local.caption.writing import append_bytes, flush, flush_folder, write_all
from ecokv_local.errors import EcokvError, UsageError

VERSION = 1
#: Name of a manifest that lies beside the pictures.
FILE_NAME = ".ecokv-caption.jsonl"

_HEAD = b'{"crc":"'
_BODY = len(_HEAD) + 10  # where the object goes on behind `{"crc":"01234567",`


def encode_line(entry: Mapping[str, Any]) -> bytes:
    """One line, its CRC-32 first: over the object without it."""
    body = json.dumps(entry, separators=(",", ":")).encode("ascii")
    return b'%s%08x",%s\n' % (_HEAD, zlib.crc32(body), body[1:])


def body_of(line: bytes) -> bytes | None:
    """The object of a line without its CRC, None if the line is damaged."""
    if len(line) <= _BODY:
        return None
    body = b"{" + line[_BODY:]
    return body if line.startswith(b'%s%08x",' % (_HEAD, zlib.crc32(body))) else None


@dataclass
class State:
    """What the lines of a manifest say by now.

    ``files`` has the last ``done`` or ``failed`` entry of each file, ``pending`` what was made and
    not yet found to be written, in order. ``settings`` are values by their id, ``open_jobs`` the
    jobs that began and did not end, with the files they have done.
    """

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    pending: dict[int, dict[str, Any]] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    open_jobs: dict[str, set[str]] = field(default_factory=dict)
    n_damaged: int = 0
    last_number: int = 0

    def take(self, entry: dict[str, Any]) -> None:
        """Book an entry."""
        status = entry["status"]
        if status in ("done", "failed"):
            self.files[entry["file"]] = entry
            self.pending.pop(entry.get("n", 0), None)
            done = self.open_jobs.get(entry["job"])
            if done is not None:
                done.add(entry["file"])
        elif status == "made":
            self.pending[entry["n"]] = entry
            self.last_number = max(self.last_number, entry["n"])
        elif status == "settings":
            self.settings[entry["id"]] = entry["values"]
        elif status == "begin":
            self.open_jobs.setdefault(entry["job"], set())
        elif status == "end":
            self.open_jobs.pop(entry["job"], None)


def read(path: str | Path) -> State:
    """The state of a manifest; an empty one if there is none.

    Raises:
        UsageError: the file is something else, or of a later version.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return State()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror})", hint="name another with --manifest"
        ) from None
    return _replayed(data, path)


_MADE = b'"status":"made","n":'


def _replayed(data: bytes, path: str | Path) -> State:
    state = State()
    made: dict[int, bytes] = {}  # looked at only where no `done` follows: they are many and long
    bodies: list[bytes] = []
    for line in data.split(b"\n"):
        if line.startswith(_MADE, _BODY):
            made[_number(line)] = line
        elif line:
            body = body_of(line)
            if body is None:
                state.n_damaged += 1
            else:
                bodies.append(body)
    entries: list[dict[str, Any]] = json.loads(b"[" + b",".join(bodies) + b"]")
    _check_header(entries, data, path)
    for entry in entries:
        made.pop(entry.get("n", 0), None)
        state.last_number = max(state.last_number, entry.get("n", 0))
        state.take(entry)
    for _, line in sorted(made.items()):
        body = body_of(line)
        if body is None:
            state.n_damaged += 1
        else:
            state.take(json.loads(body))
    return state


def _number(line: bytes) -> int:
    """Of a ``made`` line; 0, which none has, for a damaged one."""
    digits = line[_BODY + len(_MADE) :].split(b",", 1)[0]
    return int(digits) if digits.isdigit() else 0


def _check_header(entries: list[dict[str, Any]], data: bytes, path: str | Path) -> None:
    """Raises UsageError if this is no manifest, or one of a later version."""
    if not entries:
        if data.strip() and not data.startswith(_HEAD[: len(data)]):
            raise _foreign(path)
        return
    if entries[0].get("status") != "manifest":
        raise _foreign(path)
    version = entries[0].get("version")
    if version != VERSION:
        raise UsageError(
            f"{path}: is a manifest of version {version}, this program writes {VERSION}",
            hint="use a newer ecokv, or name another with --manifest",
        )


def _foreign(path: str | Path) -> UsageError:
    return UsageError(
        f"{path}: is not a manifest of this program", hint="name another file with --manifest"
    )


class Manifest:
    """A manifest that this process writes; nobody else can meanwhile. A context manager.

    ``state`` is what it said when it was opened; what is added is not booked there, so that memory
    stays flat. Raises UsageError if it cannot be opened, or another process has it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = os.path.abspath(path)
        self.folder = os.path.dirname(self.path)
        self.key = Names(self.folder)
        try:
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise UsageError(
                f"{self.path}: the manifest cannot be written ({error.strerror})",
                hint="name a place for it with --manifest",
            ) from None
        try:
            _lock(self._handle, self.path)
            self.state = read(self.path)
            self._start()
        except BaseException:
            os.close(self._handle)
            raise

    def _start(self) -> None:
        if not _ends_a_line(self._handle):
            write_all(self._handle, b"\n")  # a torn line becomes one of its own, and is passed over
        if not (self.state.files or self.state.settings or self.state.open_jobs):
            self.add({"status": "manifest", "version": VERSION})
            flush_folder(self.folder)

    def add(self, entry: Mapping[str, Any], *, durable: bool = True) -> None:
        """Append an entry; ``durable``: it is on the disk when this returns. Raises OSError."""
        line = encode_line(entry)
        if durable:
            append_bytes(self._handle, line)
        else:
            before = os.fstat(self._handle).st_size
            try:
                write_all(self._handle, line)
            except OSError:
                os.ftruncate(self._handle, before)
                raise

    def next_number(self) -> int:
        """A number that no ``made`` has had."""
        self.state.last_number += 1
        return self.state.last_number

    def flush(self) -> None:
        """Everything added is on the disk when this returns."""
        flush(self._handle)

    def close(self) -> None:
        """Flush, and let others have it."""
        if self._handle >= 0:
            flush(self._handle)
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Manifest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Names:
    """Calls files by their place seen from ``folder``, with ``/``, so that all can be moved
    together; by the absolute one where there is no way between them.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._prefixes: dict[str, str] = {}  # many files lie in few folders

    def __call__(self, path: str) -> str:
        head, name = os.path.split(path)
        if name in ("", ".", ".."):
            return self._relative(path)
        prefix = self._prefixes.get(head)
        if prefix is None:
            way = self._relative(head or ".")
            prefix = self._prefixes[head] = "" if way == "." else way.rstrip("/") + "/"
        return prefix + name

    def _relative(self, path: str) -> str:
        try:
            return os.path.relpath(path, self._folder).replace(os.sep, "/")
        except ValueError:  # another drive
            return os.path.abspath(path).replace(os.sep, "/")


def _ends_a_line(handle: int) -> bool:
    if os.lseek(handle, 0, os.SEEK_END) == 0:
        return True
    os.lseek(handle, -1, os.SEEK_END)
    return os.read(handle, 1) == b"\n"


def _lock(handle: int, path: str) -> None:
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise EcokvError(
            f"{path}: another run is writing captions here", hint="wait for it to end"
        ) from None
    except OSError:  # file systems without locks
        return
