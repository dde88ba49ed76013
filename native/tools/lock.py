"""The pin: native/llama.cpp.lock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent
LOCK_FILE = NATIVE / "llama.cpp.lock"


class ToolError(Exception):
    """Something the reader of the message can act on; shown without a traceback."""


@dataclass(frozen=True)
class Lock:
    package: str
    version: str
    archive: str
    sha256: str
    subfolder: str
    commit: str


def read_lock(path: Path = LOCK_FILE) -> Lock:
    values: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator:
            raise ToolError(f"{path}:{number}: expected 'name = value', found {line!r}")
        values[name.strip()] = value.strip()
    try:
        return Lock(**values)
    except TypeError as error:
        raise ToolError(f"{path}: {error}") from None
