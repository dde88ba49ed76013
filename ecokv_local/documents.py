"""Files to read ahead: pictures and texts, told apart by what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ecokv_local.errors import ImageError, UsageError
from ecokv_local.images import probe_image


def split_documents(paths: Sequence[str | Path]) -> tuple[str, list[str]]:
    """The texts of all text files, a blank line between each two, and the paths of the pictures.

    Raises UsageError for a file that is missing or neither, ImageError for a damaged picture.
    """
    texts, pictures = [], []
    for path in map(str, paths):
        try:
            text = _text(Path(path))
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be read ({error.strerror})", hint="check the path"
            ) from None
        if text is not None:
            texts.append(text)
            continue
        try:
            probe_image(path)
        except ImageError as error:
            if "not an image of a known format" not in error.message:
                raise
            raise UsageError(
                f"{path}: is neither a picture nor UTF-8 text",
                hint="convert it to PNG, JPEG or plain text",
            ) from None
        pictures.append(path)
    return "\n\n".join(texts), pictures


_HEAD = 4096  # bytes in which most binary files have a zero


def _text(path: Path) -> str | None:
    """UTF-8 text without control characters of binary files, or None. Raises OSError."""
    with path.open("rb") as file:
        data = file.read(_HEAD)
        if b"\0" not in data:
            data += file.read()
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return None
