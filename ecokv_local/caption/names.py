"""Names of sidecar files, and what must not share one."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence

from ecokv_local.caption.inputs import PICTURES
from ecokv_local.errors import UsageError

SIDECAR_NAMES = ("stem", "full")
_SHOWN = 5


def check_extension(extension: str) -> str:
    """``extension`` if sidecars can have it. Raises UsageError."""
    plain = extension.startswith(".") and len(extension) > 1 and not extension.endswith((".", " "))
    if not plain or any(mark in extension for mark in ("/", "\\", "\0", ":")):
        raise UsageError(
            f"--extension {extension!r} cannot end a file name", hint="for example .txt or .caption"
        )
    if extension.lower() in PICTURES:
        raise UsageError(
            f"--extension {extension}: captions would look like pictures",
            hint="for example .txt or .caption",
        )
    return extension


def sidecar_of(path: str, extension: str, *, full: bool = False) -> str:
    """Where the caption of a picture goes: ``a.txt``, or ``a.jpg.txt`` if ``full``."""
    if full:
        return path + extension
    folder, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    return os.path.join(folder, stem + extension)


def check_collisions(pictures: Sequence[str], sidecars: Sequence[str], *, full: bool) -> None:
    """Raises UsageError if two pictures would share a sidecar, here or where case does not count.

    With the full name only equal names collide: pictures that stand side by side have sidecars that
    do.
    """
    first: dict[str, str] = {}
    pairs: list[tuple[str, str, str]] = []
    for picture, sidecar in zip(pictures, sidecars, strict=True):
        key = sidecar if full else _folded(sidecar)
        other = first.setdefault(key, picture)
        if other != picture:
            pairs.append((other, picture, sidecar))
    if pairs:
        shown = "; ".join(f"{a} and {b} ({os.path.basename(s)})" for a, b, s in pairs[:_SHOWN])
        more = f"; and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
        raise UsageError(
            f"pictures that would share a caption file: {shown}{more}",
            hint="--sidecar-name full writes a.jpg.txt and a.png.txt",
        )


def _folded(path: str) -> str:
    """Equal for names that are one file on a Mac or on Windows."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def captions_among(
    pictures: Sequence[str], extension: str, *, full: bool
) -> tuple[set[str], set[str]]:
    """Inputs that end like captions and would be their own: ``photos/*`` of a shell names those of
    an earlier run too. First the captions of other inputs, then files that are something else.
    """
    alike = {name for name in pictures if name.lower().endswith(extension.lower())}
    if not alike:
        return set(), set()
    others = (name for name in pictures if name not in alike)
    captions = alike & {sidecar_of(name, extension, full=full) for name in others}
    return captions, alike - captions
