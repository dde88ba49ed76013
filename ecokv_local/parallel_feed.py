"""Requests on their way into a batch: taken when needed, made ready in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING, Any

from ecokv_local.answer import Answer
from ecokv_local.config import EvictionConfig
from ecokv_local.engine import DEFAULT_CELLS
from ecokv_local.errors import EcokvError, MemoryLimitError, StateError
from ecokv_local.groups import Span, spans_of
from ecokv_local.memory import kv_bytes
from ecokv_local.session import check_max_tokens, texts_of, user_message
from ecokv_local.turn import prompt_chunks
from ecokv_local.window import with_system

if TYPE_CHECKING:
    from ecokv_local.engine import Engine
    from ecokv_local.projector import Chunk

#: Requests that are made ready while every place of the batch is taken.
AHEAD = 2

#: Cells for an answer of unknown length.
ANSWER_CELLS = 512


Outcome = Answer | EcokvError


@dataclass(frozen=True)
class Request:
    """A question about pictures, answered on its own; ``key`` comes back with the answer."""

    key: Any
    text: str
    images: tuple[Any, ...] = ()
    max_tokens: int | None = None
    grammar: str | None = None


@dataclass
class Prepared:
    """A request as the model reads it, or why it cannot be read."""

    request: Request
    n_cells: int = 0  # that its prompt and answer need
    n_cells_ahead: int = 0  # that those behind it need, as far as known
    seeing: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    spans: tuple[Span, ...] = ()  # images and texts that may have to stay
    warnings: tuple[str, ...] = ()
    error: EcokvError | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Free the images."""
        self.chunks = []
        self._stack.close()


class Feed:
    """A queue of requests, at most ``n`` of them out at once. Images are decoded and tokenised in a
    thread of its own.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Iterable[Request],
        n: int,
        *,
        system: str | None,
        eviction: EvictionConfig,
        n_ctx: int | None,
    ) -> None:
        self._engine, self._system, self._eviction = engine, system, eviction
        self._template = engine.chat_template()
        self._n_ctx = n_ctx
        self._limit = engine.n_ctx or min(engine.n_ctx_train, DEFAULT_CELLS)
        self._requests: Iterator[Request] | None = iter(requests)
        self._queue: deque[Future[Prepared]] = deque()
        self._pool = ThreadPoolExecutor(1, "ecokv-feed")
        self._changed = Condition()
        self._n, self._n_out = n, 0  # that may be out at once, and that are
        self.stopped = False

    # ---- for the one who asked

    def fill(self) -> bool:
        """Take requests: as many as can run, and a few ahead. False where all are answered.

        Raises StateError after ``stop``.
        """
        while True:
            with self._changed:
                if self.stopped:
                    raise StateError("the engine was closed")
                if self._requests is None or self._n_out + len(self._queue) >= self._n + AHEAD:
                    return bool(self._queue) or self._n_out > 0
            try:
                request = next(self._requests)
            except StopIteration:
                self._requests = None
                continue
            future = self._pool.submit(self._prepare, request)
            with self._changed:
                self._queue.append(future)
            future.add_done_callback(self._notify)

    def release(self) -> None:
        """An answer was used: another request may run. So never more than ``n`` are begun whose
        answers nobody has.
        """
        with self._changed:
            self._n_out -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Free everything; idempotent. Waits for the image that is being decoded."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        while self._queue:
            future = self._queue.popleft()
            if not future.cancelled():
                future.result().close()

    def stop(self) -> None:
        """Give out nothing more."""
        with self._changed:
            self._requests, self.stopped = None, True
            self._changed.notify_all()

    # ---- for those who answer

    def take(self, fits: Callable[[Prepared], bool], *, wait: bool) -> Prepared | None:
        """The next request, if it is ready and fits. None if not, or with ``wait`` at the end of
        all. Whoever has it closes it.
        """
        with self._changed:
            while not self.stopped:
                if self._queue and self._n_out < self._n and self._queue[0].done():
                    prepared = self._queue[0].result()
                    if fits(prepared):
                        self._queue.popleft()
                        self._n_out += 1
                        ready = [f.result() for f in self._queue if f.done()]
                        prepared.n_cells_ahead = max((p.n_cells for p in ready), default=0)
                        return prepared
                if not wait:
                    break
                self._changed.wait()
        return None

    def _notify(self, _future: Future[Prepared]) -> None:
        with self._changed:
            self._changed.notify_all()

    # ---- in the background

    def _prepare(self, request: Request) -> Prepared:
        prepared = Prepared(request)
        try:
            self._read(prepared)
        except EcokvError as error:
            prepared.error = error
        except MemoryError:
            prepared.error = MemoryLimitError("out of memory", hint="try a smaller picture")
        if prepared.error is not None:
            prepared.close()
        return prepared

    def _read(self, prepared: Prepared) -> None:
        request, engine = prepared.request, self._engine
        check_max_tokens(request.max_tokens)
        message = user_message(engine, request.text, request.images)
        rendered = self._template.render(with_system(self._system, [message]))
        chunks = prompt_chunks(engine, rendered.text, message.images, fresh=True)
        prepared.chunks = prepared._stack.enter_context(chunks)
        texts = texts_of(self._system, message)
        prepared.spans = spans_of(engine.vocab, rendered.text, prepared.chunks, 0, texts)
        prepared.warnings, prepared.seeing = rendered.warnings, bool(message.images)
        prepared.n_cells = self._cells(prepared)

    def _cells(self, prepared: Prepared) -> int:
        """What the prompt needs, then the answer: at most the budget and its slack."""
        if self._n_ctx is not None:
            return self._n_ctx
        n_prompt = sum(chunk.n_tokens for chunk in prepared.chunks)
        answer = prepared.request.max_tokens
        rows = n_prompt + (ANSWER_CELLS if answer is None else answer)
        meta = self._engine.meta
        windowed = meta.fields.get(f"{meta.architecture}.attention.sliding_window")
        if self._eviction.enabled and not windowed:  # a window needs cells for all its positions
            pair = kv_bytes(meta, 1, *self._engine.cache_types)
            pairs = self._eviction.pairs(n_prompt, max(1, pair))
            rows = min(rows, max(n_prompt, pairs) + self._eviction.slack)
        return min(rows + 2, self._limit)
