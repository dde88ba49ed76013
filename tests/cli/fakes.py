"""An engine without a model: answers what a test has put into its queue.

It keeps the promises of `ecokv_local.Engine` and `Session` that the command line relies on, the
rollback of a failed turn included, and remembers what it was asked.

As a program, `python fakes.py QUEUE ARGUMENTS...` is `ecokv` over this engine; QUEUE is a JSON list
of replies. That is how the tests with a terminal, a closed pipe or a signal run it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ecokv_local import Answer, Event

MODEL = "fake.gguf"


@dataclass
class Reply:
    """One answer: its pieces, the seconds before each, and what the record says of it."""

    pieces: list[str] = field(default_factory=list)
    delay: float = 0.0
    status: list[str] = field(default_factory=list)
    error: Exception | None = None
    record: dict[str, Any] = field(default_factory=dict)
    deaf: bool = False  #: does not hear `stop`, like one long call into native code


@dataclass(frozen=True)
class Asked:
    """What one call of `ask` or `regenerate` was given."""

    text: str
    images: tuple[Any, ...]
    max_tokens: int | None
    regenerated: bool = False


class FakeSession:
    """One conversation. `asked` is what it was asked, `messages` what it kept."""

    def __init__(self, engine: FakeEngine, options: dict[str, Any]) -> None:
        self.engine = engine
        self.options = options
        self.messages: list[tuple[str, str]] = []
        self.asked: list[Asked] = []
        self.configured: list[dict[str, Any]] = []
        self.closed = False
        self.n_position, self.n_rows, self.n_cells = 31, 21, 128
        self._stopped = False

    def ask(self, text: str, images: Any = (), *, max_tokens: int | None = None) -> Iterator[Event]:
        return self._turn(Asked(text, tuple(images), max_tokens))

    def regenerate(self, *, max_tokens: int | None = None) -> Iterator[Event]:
        from ecokv_local.errors import StateError

        if not self.messages:
            raise StateError("there is no answer to make again", hint="ask something first")
        last = self.asked[-1]
        del self.messages[-2:]
        return self._turn(replace(last, max_tokens=max_tokens, regenerated=True))

    def _turn(self, asked: Asked) -> Iterator[Event]:
        self._stopped = False
        self.asked.append(asked)
        reply = self.engine.queue.pop(0) if self.engine.queue else Reply(["ok"])
        for text in reply.status:
            yield Event("status", text)
        given = ""
        for piece in reply.pieces:
            self._wait(reply)
            if self._stopped:
                break
            given += piece
            yield Event("text", piece)
        if reply.error is not None:
            raise reply.error
        self.messages += [("user", asked.text), ("assistant", given)]
        reason = "cancelled" if self._stopped else "stop"
        yield Event("end", answer=Answer(**(self._record(given, reason) | reply.record)))

    def _wait(self, reply: Reply) -> None:
        end = time.monotonic() + reply.delay
        while time.monotonic() < end and (reply.deaf or not self._stopped):
            time.sleep(0.005)

    def _record(self, text: str, reason: str) -> dict[str, Any]:
        eviction = self.options["eviction"]
        budget = eviction.budget
        return {
            "text": text,
            "finish_reason": reason,
            "truncated": False,
            "model": self.engine.model_path,
            "mmproj": self.engine.mmproj_path,
            "budget": None if budget is None else str(budget),
            "policy": eviction.policy,
            "n_prompt": 31,
            "n_image_tokens": 16,
            "n_kept": 21,
            "n_evicted": 10,
            "kv_bytes": 3 * 2**20,
            "kv_bytes_peak": 4 * 2**20,
            "t_encode_ms": 12.5,
            "t_prefill_ms": 1500.0,
            "t_evict_ms": 0.5,
            "t_decode_ms": 30.0,
            "tokens_per_s": 40.0,
            "warnings": (),
            "error": None,
        }

    def stop(self) -> None:
        self._stopped = True

    def clear(self) -> None:
        self.messages.clear()

    def configure(self, **changes: Any) -> None:
        self.configured.append(changes)
        self.options.update(changes)

    def stats(self) -> dict[str, Any]:
        layers = [{"il": il, "n_evictions": 1 + il // 2, "n_pairs_kept": 21} for il in range(4)]
        return {"turns": len(self.messages) // 2, "cache": {"rows": 21}, "layers": layers}

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """Stands in for `ecokv_local.Engine`. Everything is on the class: a command makes its own."""

    queue: ClassVar[list[Reply]] = []
    opened: ClassVar[list[FakeEngine]] = []
    fail: Exception | None = None
    has_vision = True
    load_seconds = 0.0

    def __init__(self, model: Any = None, mmproj: Any = None, **options: Any) -> None:
        time.sleep(type(self).load_seconds)
        if type(self).fail is not None:
            raise type(self).fail
        self.model_path = model or MODEL
        self.mmproj_path = mmproj
        self.options = options
        self.n_ctx_train = 2048
        self.sessions: list[FakeSession] = []
        self.closed = False
        type(self).opened.append(self)

    def session(self, **options: Any) -> FakeSession:
        self.sessions.append(FakeSession(self, options))
        return self.sessions[-1]

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def reset(cls) -> None:
        cls.queue, cls.opened, cls.fail = [], [], None
        cls.has_vision, cls.load_seconds = True, 0.0

    @classmethod
    def enqueue(cls, *replies: Reply | str | Exception) -> None:
        """Add answers: a text, an exception to raise, or a `Reply` for more."""
        for reply in replies:
            if isinstance(reply, str):
                reply = Reply([reply])
            elif isinstance(reply, Exception):
                reply = Reply(error=reply)
            cls.queue.append(reply)


def from_json(item: Any) -> Reply | str:
    """A reply of the queue of a test that runs in another process."""
    if isinstance(item, str):
        return item
    item = dict(item)
    if "error" in item:
        from ecokv_local import errors

        kind, message = item["error"]
        made = getattr(errors, kind)(message, hint="try another") if kind else ValueError(message)
        item["error"] = made
    item["pieces"] = item.get("pieces", []) * item.pop("times", 1)
    return Reply(**item)


def main() -> int:
    import ecokv_local
    from ecokv_cli.main import main as ecokv

    queue = json.loads(sys.argv[1])
    if queue and isinstance(queue[0], dict) and "load_seconds" in queue[0]:
        FakeEngine.load_seconds = queue.pop(0)["load_seconds"]
    FakeEngine.enqueue(*(from_json(item) for item in queue))
    vars(ecokv_local)["Engine"] = FakeEngine
    return ecokv(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
