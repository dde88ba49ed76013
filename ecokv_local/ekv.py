"""The file of a saved session: named sections behind a header, all of it under a checksum.

::

    magic (8) | version u32 | length of header u32 | size of file u64 | CRC-32 of these u32
    header: JSON with what tells whether the file fits, and the sections with their sizes
    the sections, one after another
    SHA-256 of everything before it

A section is stored as four planes, of the bytes 0, 1, 2, 3 of every four: those of signs and
exponents of numbers compress without loss, those of mantissas do not and stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecokv_local.caption.writing import replace_file
from ecokv_local.errors import SessionFileError

VERSION = 1
_MAGIC = b"ECOKV\r\n\x1a"
_FIXED = struct.Struct("<8sIIQ")
_START = _FIXED.size + 4  # with its CRC-32
_DIGEST = 32
_PLANES = 4
_DAMAGED_HINT = "copy it again, or read the documents again with ecokv read"


@dataclass(frozen=True)
class SessionFile:
    """``info`` is the header without its list of sections, ``sections`` are the bytes by name."""

    info: dict[str, Any]
    sections: dict[str, bytes]


def _pack(data: bytes) -> tuple[list[int], list[bytes]]:
    """Sizes of the planes as they are stored (negative: compressed), and the planes."""
    padded = np.frombuffer(data + bytes(-len(data) % _PLANES), np.uint8).reshape(-1, _PLANES)
    sizes, planes = [], []
    for i in range(_PLANES):
        plain = padded[:, i].tobytes()
        small = zlib.compress(plain, 1)
        better = len(small) < len(plain)
        planes.append(small if better else plain)
        sizes.append(-len(small) if better else len(plain))
    return sizes, planes


def _unpack(parts: list[bytes], sizes: list[int], n_bytes: int) -> bytes:
    n = -(-n_bytes // _PLANES)
    result = np.empty((n, _PLANES), np.uint8)
    for i, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        plain = zlib.decompressobj().decompress(part, n + 1) if size < 0 else part
        result[:, i] = np.frombuffer(plain, np.uint8)
    return result.tobytes()[:n_bytes]


def write(path: str | Path, file: SessionFile) -> int:
    """Write a session file, whole or not at all; returns its size in bytes. Raises OSError."""
    listed, stored = [], []
    for name, data in file.sections.items():
        sizes, planes = _pack(data)
        listed.append({"name": name, "bytes": len(data), "planes": sizes})
        stored += planes
    header = json.dumps({**file.info, "sections": listed}, ensure_ascii=False).encode()
    size = _START + len(header) + sum(map(len, stored)) + _DIGEST
    fixed = _FIXED.pack(_MAGIC, VERSION, len(header), size)
    data = b"".join([fixed, struct.pack("<I", zlib.crc32(fixed)), header, *stored])
    replace_file(path, data + hashlib.sha256(data).digest())
    return size


def read(path: str | Path) -> SessionFile:
    """Read a session file and check all of it.

    Raises SessionFileError: no such file, none of ours, of a newer version, truncated or damaged.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(_START)
            header_size, size = _check_start(path, start, os.fstat(file.fileno()).st_size)
            data = start + file.read()
    except OSError as error:
        raise SessionFileError(
            f"{path}: cannot be read ({error.strerror})", hint="check the path"
        ) from None
    if len(data) != size or hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise SessionFileError(f"{path}: the session file is damaged", hint=_DAMAGED_HINT)
    try:
        return _contents(data, header_size)
    except (ValueError, KeyError, TypeError, zlib.error) as error:  # written so, not damaged since
        raise SessionFileError(
            f"{path}: the session file cannot be understood ({error})", hint=_DAMAGED_HINT
        ) from error


def _check_start(path: str | Path, start: bytes, n_bytes: int) -> tuple[int, int]:
    if start[:4] != _MAGIC[:4]:
        raise SessionFileError(
            f"{path}: not a session file", hint="name a file that /save or ecokv read wrote"
        )
    fixed = start[: _FIXED.size]
    if len(start) < _START or struct.unpack("<I", start[_FIXED.size :])[0] != zlib.crc32(fixed):
        raise SessionFileError(f"{path}: the session file is damaged", hint=_DAMAGED_HINT)
    magic, version, header_size, size = _FIXED.unpack(fixed)
    if version > VERSION or magic != _MAGIC:
        raise SessionFileError(
            f"{path}: session file of version {version}, this program reads up to {VERSION}",
            hint="update ecokv-local",
        )
    if n_bytes != size:
        raise SessionFileError(
            f"{path}: the session file is truncated: {n_bytes} of {size} bytes", hint=_DAMAGED_HINT
        )
    return header_size, size


def _contents(data: bytes, header_size: int) -> SessionFile:
    info = json.loads(data[_START : _START + header_size])
    at, sections = _START + header_size, {}
    for section in info.pop("sections"):
        parts = []
        for size in section["planes"]:
            parts.append(data[at : at + abs(size)])
            at += abs(size)
        sections[section["name"]] = _unpack(parts, section["planes"], section["bytes"])
    return SessionFile(info, sections)
