"""Documents that are read before anything is asked: they begin the first message of a talk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ecokv_local.answer import Event
from ecokv_local.errors import StateError
from ecokv_local.messages import Message
from ecokv_local.turn import Turn, prompt_chunks

if TYPE_CHECKING:
    from ecokv_local.session import Session

_END = "\ue0f8\ue0f8"  # of the private use area: where the documents end in the rendered text
_SEEN = "I have read it."


def prefix_of(session: Session, message: Message) -> tuple[str, tuple[str, ...]]:
    """The prompt up to the end of an unfinished user message, and warnings of its template."""
    unfinished = Message("user", message.text + _END, message.images)
    rendered = session.render([unfinished], add_generation_prompt=False)
    return rendered.text[: rendered.text.rfind(_END)], rendered.warnings


def read(session: Session, message: Message) -> Iterator[Event]:
    """Read an unfinished user message into an empty session, down to the budget.

    Stopped half-way, the session is empty again. Raises StateError if something was said already.
    """
    if session.messages or session.opening:
        raise StateError("documents are read before a talk begins", hint="clear the session first")
    prefix, warnings = prefix_of(session, message)
    session.see(bool(message.images))
    turn = Turn(session, 0, list(warnings), again=True)
    try:
        with prompt_chunks(session.engine, prefix, message.images, fresh=True) as chunks:
            yield from turn.read(chunks)
        if turn.prompt_read and turn.n_evictions and session.eviction.shrink:
            session.context.shrink(session.eviction.slack + 1)
    finally:
        if turn.prompt_read:
            session.opened(message, prefix, turn.n_evictions)
        else:
            session.context.clear()
    yield Event("end", "", turn.record())


def join(opening: Message, message: Message) -> list[Message]:
    """A first message behind documents: one with them, or its own if it brings images, which a
    template puts before all text.
    """
    if message.images:
        return [opening, Message("assistant", _SEEN), message]
    text = f"{opening.text}\n\n{message.text}" if opening.text else message.text
    return [Message("user", text, opening.images)]
