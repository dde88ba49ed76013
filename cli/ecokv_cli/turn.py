"""One turn of a conversation: run it, print it while it comes, tell what it took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Any

from ecokv_cli import stats
from ecokv_cli.errors import of_answer
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.output import Output

if TYPE_CHECKING:
    from ecokv_local import Event, Session


def play(
    out: Output,
    session: Session,
    events: Iterator[Event],
    *,
    warnings: Sequence[str] = (),
    show_stats: bool = False,
) -> dict[str, Any]:
    """Print the answer of `events`; returns its record. Ctrl-C stops it and keeps the turn."""
    answer = None
    try:
        # closed here, so that a turn that nobody reads to its end is booked while there is a cache
        with Interrupts(session.stop) as interrupts, _closed(events):
            for event in events:
                if interrupts.pressed:
                    session.stop()
                if event.kind == "status":
                    out.status(event.text)
                elif event.kind == "text":
                    out.answer(event.text)
                elif event.kind == "end":
                    answer = event.answer
    finally:
        out.still()
    if answer is None:
        raise RuntimeError("the answer ended without a record")
    record = dict(answer.to_dict())
    record["warnings"] = [*warnings, *record["warnings"]]
    if record["finish_reason"] == "error":
        raise of_answer(record["error"] or {})
    out.answer_ends(record["text"])
    if out.as_json:
        out.record(record)
    elif record["finish_reason"] == "length":
        out.note("note: the answer was cut off: -n or the context is used up")
    for warning in record["warnings"]:
        out.warn(warning)
    if show_stats:
        out.show(stats.of_answer(record))
    return record


def _closed(events: Any) -> AbstractContextManager[Any]:
    return closing(events) if hasattr(events, "close") else nullcontext()
