"""What was said in a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ecokv_local.images import ImageInput


@dataclass(frozen=True, slots=True)
class Message:
    """One message: ``role`` is "system", "user" or "assistant"; images stand before the text."""

    role: str
    text: str
    images: tuple[ImageInput, ...] = ()
