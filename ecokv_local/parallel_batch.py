"""What runs in one native context: a prompt on every place, and one step for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from ecokv_local.answer import Answer
from ecokv_local.config import EvictionConfig, SamplingConfig
from ecokv_local.context import Stopped
from ecokv_local.errors import EcokvError, MemoryLimitError, ModelError
from ecokv_local.fork import Saved, restore_rows, save_rows
from ecokv_local.parallel_cache import Stream, Streams
from ecokv_local.parallel_feed import Outcome, Prepared, Request
from ecokv_local.sampling import Sampler
from ecokv_local.turn import Turn

if TYPE_CHECKING:
    from ecokv_local.engine import Engine
    from ecokv_local.projector import Chunk


class _Lane:
    """A place in the batch: a sequence, and the turn that runs on it."""

    stopping = False

    def __init__(self, engine: Engine, stream: Stream, eviction: EvictionConfig) -> None:
        self.engine, self.context, self.eviction = engine, stream, eviction
        self.turn: Turn | None = None
        self.request: Request | None = None
        self.token = 0  # drawn, and not in the cache yet
        self._sampler: Sampler | None = None

    def begin(self, prepared: Prepared, sampling: SamplingConfig, prefix: _Prefix) -> None:
        """Read a prompt. Raises EcokvError, Stopped."""
        request = prepared.request
        self.request = request
        self._sampler = Sampler(replace(sampling, grammar=request.grammar or sampling.grammar))
        chunks, clock = prepared.chunks, perf_counter()
        n_shared = prefix.put(self.context, chunks)
        seconds = perf_counter() - clock
        self.turn = Turn(self, request.max_tokens, list(prepared.warnings), n_shared=n_shared)
        self.turn.add_prefill(seconds)
        for _ in self.turn.read(chunks[1:] if n_shared else chunks, prepared.spans):
            pass
        if not self.turn.prompt_read:
            raise Stopped  # there is nothing to draw from

    def draw(self, output: int) -> bool:
        """Draw the next token; False where the answer ends."""
        assert self.turn is not None
        token = self.turn.draw(output)
        if token is None:
            return False
        self.token = token
        return True

    def go_on(self, seconds: float, output: int) -> bool:
        """Its token was decoded: evict where that is due, and draw the next one."""
        assert self.turn is not None
        self.turn.accept(self.token, seconds)
        self.turn.settle()
        return self.draw(output)

    def sampler(self) -> Sampler:
        """Of this request alone."""
        assert self._sampler is not None
        return self._sampler

    def answer(self) -> Answer:
        """The answer, which has ended."""
        assert self.turn is not None
        self.turn.end()
        return self.turn.record()

    def leave(self) -> None:
        """Make room for the next request."""
        self.turn = self.request = None
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        self.context.clear()


class _Prefix:
    """The tokens before the first image, which most requests share: read once, then copied."""

    def __init__(self) -> None:
        self._tokens: tuple[int, ...] = ()
        self._saved: Saved | None = None

    def forget(self) -> None:
        """What was read is of no use any more."""
        self._saved = None

    def put(self, stream: Stream, chunks: list[Chunk]) -> int:
        """Into an empty sequence; how many tokens of the prompt that were."""
        if len(chunks) < 2 or chunks[0].is_image or chunks[0].n_tokens >= stream.n_cells:
            return 0
        tokens = chunks[0].tokens
        if self._saved is not None and tokens == self._tokens:
            restore_rows(stream, self._saved)
            return len(tokens)
        for start in range(0, len(tokens), stream.n_ubatch):
            stream.decode(tokens[start : start + stream.n_ubatch])
        self._tokens, self._saved = tokens, save_rows(stream)
        return len(tokens)


class Batch:
    """The sequences, and what runs on them."""

    def __init__(
        self,
        engine: Engine,
        n: int,
        eviction: EvictionConfig,
        sampling: SamplingConfig,
        *,
        threads: int,
    ) -> None:
        self.n_lanes, self._threads = n, threads
        self._engine, self._eviction, self._sampling = engine, eviction, sampling
        self._streams: Streams | None = None
        self._lanes: list[_Lane] = []
        self._prefix = _Prefix()
        self._seeing = False

    @property
    def n_active(self) -> int:
        """Requests that are being answered."""
        return sum(lane.turn is not None for lane in self._lanes)

    def takes(self, prepared: Prepared) -> bool:
        """Whether a request can enter now: an adapter that is for images only, or too few cells,
        make it wait until the running ones have ended.
        """
        if not self.n_active:
            return True
        return (
            self.n_active < self.n_lanes
            and self._streams is not None
            and (prepared.error is not None or prepared.n_cells <= self._streams.n_cells)
            and self._same_adapters(prepared)
        )

    def _same_adapters(self, prepared: Prepared) -> bool:
        adapters = self._engine.adapters
        return adapters(seeing=prepared.seeing) == adapters(seeing=self._seeing)

    def _suit(self, prepared: Prepared) -> None:
        """Where nothing runs: adapters and cells for what comes next."""
        n_cells = max(prepared.n_cells, prepared.n_cells_ahead)
        if self._streams is None or self._streams.n_cells < prepared.n_cells:
            self._free()
            self._streams = Streams(
                self._engine, self.n_lanes, n_cells, self._eviction, threads=self._threads
            )
            self._lanes = [_Lane(self._engine, s, self._eviction) for s in self._streams.all]
            self._seeing = False
            self._prefix.forget()
        if not self._same_adapters(prepared):
            self._streams.context.set_adapters(self._engine.adapters(seeing=prepared.seeing))
            self._prefix.forget()
        self._seeing = prepared.seeing

    def admit(self, prepared: Prepared) -> Outcome | None:
        """Read a request; its outcome, if it ends at once. Raises ModelError for a memory that
        cannot be evicted.
        """
        if prepared.error is not None:
            return prepared.error
        lane = None
        try:
            if not self.n_active:
                self._suit(prepared)
            lane = next(lane for lane in self._lanes if lane.turn is None)
            lane.begin(prepared, self._sampling, self._prefix)
            if lane.draw(-1):
                return None
            outcome: Outcome = lane.answer()
        except ModelError:
            raise
        except EcokvError as error:
            outcome = error
        except MemoryError:
            outcome = MemoryLimitError("out of memory", hint="try a smaller picture")
        finally:
            prepared.close()
        if lane is not None:
            lane.leave()
        return outcome

    def step(self) -> Iterator[tuple[Request, Outcome]]:
        """One token more for every answer; those that ended."""
        assert self._streams is not None
        lanes = [lane for lane in self._lanes if lane.turn is not None]
        clock = perf_counter()
        try:
            self._streams.step([(lane.context, lane.token) for lane in lanes])
        except EcokvError as error:  # of the batch as a whole: nobody's fault, everybody's loss
            yield from [self._leave(lane, error) for lane in lanes]
            return
        seconds = perf_counter() - clock
        ended: list[tuple[Request, Outcome]] = []
        for output, lane in enumerate(lanes):
            try:
                if not lane.go_on(seconds, output):
                    ended.append(self._leave(lane, lane.answer()))
            except EcokvError as error:
                ended.append(self._leave(lane, error))
        yield from ended

    def _leave(self, lane: _Lane, outcome: Outcome) -> tuple[Request, Outcome]:
        assert lane.request is not None
        request = lane.request
        lane.leave()
        return request, outcome

    def request_stop(self) -> None:
        """End the running decode. Any thread may call this."""
        if self._streams is not None:
            self._streams.context.request_stop()

    def _free(self) -> None:
        for lane in self._lanes:
            if lane.turn is not None:
                lane.leave()
        self._lanes = []
        if self._streams is not None:
            self._streams.close()
            self._streams = None

    def close(self) -> None:
        """Free everything; idempotent."""
        self._free()
        self._prefix.forget()
