"""What a batch gives back for a picture, and what it raises."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ecokv_local.caption.config import CaptionConfig
from ecokv_local.caption.inputs import Source
from ecokv_local.caption.manifest import FILE_NAME
from ecokv_local.caption.plan import Item
from ecokv_local.errors import EcokvError, ImageError, UsageError

if TYPE_CHECKING:
    from ecokv_local.answer import Answer


@dataclass(frozen=True)
class Result:
    """What became of one picture: ``caption`` and ``answer``, or ``error``."""

    path: str
    caption: str = ""
    prompt: str = ""
    sidecar: str | None = None
    answer: Answer | None = None
    error: EcokvError | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a caption."""
        return self.error is None


@dataclass
class Work:
    """A picture that the model has: what was found out before."""

    item: Item
    prompt: str
    head: str
    tail: str
    sha256: str


class ChangedError(UsageError):
    """Captions were made with other settings, and nobody said what to do with them."""

    code = "changed"

    def __init__(self, changes: dict[str, int]) -> None:
        shown = "; ".join(f"{what} ({n} files)" for what, n in changes.items())
        super().__init__(
            f"captions are there that were made otherwise: {shown}",
            hint="--changed keep leaves them, --changed redo makes them again",
        )
        self.changes = changes


def manifest_path(config: CaptionConfig, sources: Sequence[Source]) -> str:
    """Where the manifest of a batch lies: as configured, beside the first output, or in the folder
    that all pictures have in common.
    """
    if config.manifest is not None:
        return config.manifest
    if config.outputs and not config.sidecars:
        folder, name = os.path.split(config.outputs[0])
        return os.path.join(folder, f".{name}.manifest.jsonl")
    named = {os.path.dirname(source.path) for source in sources}
    folders = {os.path.abspath(folder) for folder in named}
    try:
        folder = os.path.commonpath(folders) if folders else os.getcwd()
    except ValueError:  # several drives
        folder = os.getcwd()
    return os.path.join(folder, FILE_NAME)


def changed_meanwhile(item: Item) -> EcokvError | None:
    """A picture that is not the one that was hashed any more."""
    try:
        status = os.stat(item.path)
    except OSError:
        return ImageError(f"{item.path}: was removed while it was captioned")
    if (status.st_size, status.st_mtime_ns) != item.stat:
        return ImageError(
            f"{item.path}: was changed while it was captioned", hint="caption it again"
        )
    return None


def disk_error(error: OSError) -> EcokvError:
    name = f"{error.filename}: " if error.filename else ""
    return EcokvError(
        f"{name}nothing more can be written ({error.strerror})",
        hint="make room and run it again: it goes on where it stopped",
    )


def not_writable(error: OSError, path: str) -> EcokvError:
    """A caption that cannot be written where it belongs, though others can."""
    return EcokvError(
        f"{error.filename or path}: cannot be written ({error.strerror})",
        hint="check the name and the permissions of the folder",
    )


def check_place(sidecar: str) -> None:
    """Raises EcokvError for a sidecar that cannot be, before the model works for it."""
    try:
        os.stat(sidecar)
    except FileNotFoundError:
        folder = os.path.dirname(sidecar) or "."
        if os.path.isdir(folder) and not os.access(folder, os.W_OK):
            error = PermissionError(0, "no permission to write into the folder", sidecar)
            raise not_writable(error, sidecar) from None
    except OSError as error:
        raise not_writable(error, sidecar) from None
