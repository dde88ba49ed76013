"""What of a conversation the cache has read, as text; of a long one its last part is enough.

A turn is rendered to find the text that is new. If all of a talk were rendered each time, every
turn would cost more than the one before. So the messages before a window are left out as soon as
there are enough of them, and the template renders the window as it does the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ecokv_local.context import Mark
from ecokv_local.errors import TemplateError
from ecokv_local.messages import Message
from ecokv_local.prompt import neutralise

if TYPE_CHECKING:
    from ecokv_local.prompt import ChatTemplate

#: Messages of a window at most, and those that stay when it moves on; even: it begins with a user.
MOST, LEFT = 64, 16

_START = Mark()


@dataclass(frozen=True)
class Read:
    """What of the conversation the cache has read: rendered text, and where that ends.

    ``text`` is that of the system prompt and of the messages from ``first`` on, with ``n_images``.
    """

    text: str = ""
    n_images: int = 0
    end: Mark = _START
    first: int = 0


def with_system(system: str | None, conversation: Sequence[Message]) -> list[Message]:
    """A conversation with its system prompt, if there is one."""
    return [Message("system", system), *conversation] if system else list(conversation)


def moved(
    template: ChatTemplate, system: str | None, messages: Sequence[Message], prompt: str, read: Read
) -> Read:
    """``read`` with a window that begins later, if it has become long; else as it was.

    ``messages`` are the whole conversation up to the question that ``prompt``, the rendered text of
    the old window, ends with. The window moves only where both texts end alike, from its first
    question on.
    """
    if len(messages) - read.first <= MOST:
        return read
    first = len(messages) - 1 - LEFT
    window = messages[first:]
    if window[0].role != "user":
        return read
    try:
        shorter = template.render(with_system(system, window)).text
    except TemplateError:
        return read
    question = neutralise(window[0].text).strip()
    at = shorter.find(question, len(system or ""))
    if not question or at < 0 or not prompt.endswith(shorter[at:]):
        return read
    answer = read.text[len(prompt) :]
    n_images = sum(len(m.images) for m in window)
    return replace(read, text=shorter + answer, n_images=n_images, first=first)
