"""One file for all captions: JSON lines or CSV, a row a picture, added durably and once each."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from ecokv_local.answer import Answer
from ecokv_local.caption.manifest import Names
from ecokv_local.caption.writing import (
    append_bytes,
    flush_folder,
    read_if_there,
    replace_file,
)
from ecokv_local.errors import UsageError

#: Keys of a row, in this order: the picture, what was asked, and the record of the answer.
#: ``file_name`` is seen from the folder of the file.
COLUMNS = ("file_name", "prompt", *(field.name for field in fields(Answer)))


class Rows:
    """A ``.jsonl`` or ``.csv`` file. ``names`` are the pictures that have a row.

    Raises UsageError if there is a file that is something else.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.folder = os.path.dirname(self.path)
        self.name = Names(self.folder)  # how a picture is called here
        self.is_csv = path.lower().endswith(".csv")
        if not os.path.isdir(self.folder):
            raise UsageError(
                f"{path}: the folder {self.folder} does not exist", hint="make it first"
            )
        self.names: set[str] = set()
        self.has_doubles = False
        self._handle = -1
        self._head = b""

    def load(self) -> None:
        """Read which pictures have a row. Raises UsageError."""
        try:
            data = read_if_there(self.path)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be read ({error.strerror})", hint="name another --output"
            ) from None
        data = data or b""
        head = self._csv_line(COLUMNS) if self.is_csv else b""
        self._head = head[len(data) :] if head.startswith(data) else b""  # missing or torn
        names = [] if self._head else [name for name, _ in self._split(data)]
        self.names = set(names) - {""}
        self.has_doubles = len(self.names) < sum(map(bool, names))

    def encode(self, picture: str, prompt: str, record: Mapping[str, Any]) -> bytes:
        """The row of a picture, line end included."""
        row = {"file_name": self.name(picture), "prompt": prompt, **record}
        if self.is_csv:
            return self._csv_line([_cell(row.get(column)) for column in COLUMNS])
        try:
            return json.dumps(row, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:  # a file name that is no UTF-8
            return json.dumps(row).encode() + b"\n"

    @staticmethod
    def _csv_line(cells: Any) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerow(cells)
        return text.getvalue().encode("utf-8", "surrogateescape")

    # ---- writing

    @property
    def size(self) -> int:
        """Bytes of the file, 0 if there is none."""
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return 0

    def append(self, row: bytes) -> None:
        """Add a row, durably; all of it or nothing. Raises OSError."""
        append_bytes(self._open(), row)

    def prepare(self) -> None:
        """Make the file, with its header, so that rows can be added. Raises OSError."""
        append_bytes(self._open(), self._head)
        self._head = b""

    def _open(self) -> int:
        if self._handle < 0:
            new = not os.path.exists(self.path)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            if new:
                flush_folder(self.folder)
        return self._handle

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    # ---- after a run that was killed

    def complete(self, row: bytes, at: int) -> None:
        """See to it that ``row``, which was to be added at byte ``at``, is there once.

        What is there decides: all of it, a beginning (the rest is added), or nothing.
        """
        data = read_if_there(self.path) or b""
        if data[at:] != row and row in data:  # others have followed
            return
        torn = data[at:]
        if len(data) >= at and row.startswith(torn):
            self.append(row[len(torn) :])
        else:  # somebody changed the file meanwhile
            self.append((b"" if data.endswith(b"\n") or not data else b"\n") + row)

    def compact(self) -> None:
        """Of pictures that have several rows keep the last; the file is replaced by another."""
        data = read_if_there(self.path) or b""
        rows = list(self._split(data))
        last = {name: i for i, (name, _) in enumerate(rows)}
        kept = [row for i, (name, row) in enumerate(rows) if last[name] == i]
        if len(kept) < len(rows):
            self.close()
            head = data[: len(data) - sum(len(row) for _, row in rows)]
            replace_file(self.path, head + b"".join(kept))
        self.has_doubles = False

    # ---- reading

    def _split(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Names and bytes of the rows. Raises UsageError for a line that is none."""
        yield from self._csv_rows(data) if self.is_csv else self._json_rows(data)

    def _json_rows(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        for number, line in enumerate(_lines(data), 1):
            try:
                name = json.loads(line)["file_name"]
            except (ValueError, KeyError, TypeError):
                if not line.strip():
                    name = ""
                else:
                    raise self._foreign(number, line) from None
            yield name, line

    def _csv_rows(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        if not data:
            return
        lines = _lines(data)
        used = 0

        def counted() -> Iterator[str]:
            nonlocal used
            for line in lines:
                used += 1
                yield line.decode("utf-8", "surrogateescape")

        reader = csv.reader(counted())
        header = next(reader)
        if tuple(header) != COLUMNS:
            raise UsageError(
                f"{self.path}: its columns are not those of this program",
                hint=f"name another --output; columns: {', '.join(COLUMNS)}",
            )
        start = used
        for cells in reader:
            row = b"".join(lines[start:used])
            start = used
            if cells and len(cells) != len(COLUMNS):
                raise self._foreign(used, row)
            yield (cells[0] if cells else ""), row

    def _foreign(self, number: int, line: bytes) -> UsageError:
        return UsageError(
            f"{self.path}:{number}: is not a row of this program: {line[:60]!r}",
            hint="repair the line or remove it, or name another --output",
        )


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends, which are line feeds and nothing else."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("\0", "")  # which Python's own reader takes from 3.11 on
