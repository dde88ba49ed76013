"""One turn: read the new part of the prompt, evict, generate; measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ecokv_local.answer import Answer, Event, FinishReason
from ecokv_local.context import Stopped
from ecokv_local.errors import ContextFullError, UsageError
from ecokv_local.groups import NO_TEXTS, Span, Texts, check_fits, spans_of
from ecokv_local.memory import free_bytes
from ecokv_local.prompt import MEDIA_MARKER
from ecokv_local.utf8 import Utf8Decoder

if TYPE_CHECKING:
    from ecokv_local.config import EvictionConfig
    from ecokv_local.context import Context
    from ecokv_local.engine import Engine
    from ecokv_local.images import ImageInput, LoadedImage
    from ecokv_local.projector import Chunk
    from ecokv_local.sampling import Sampler


class Host(Protocol):
    """What a turn is run for: a session, or a place in a parallel batch."""

    engine: Engine
    eviction: EvictionConfig

    @property
    def context(self) -> Context: ...

    @property
    def stopping(self) -> bool: ...

    def sampler(self) -> Sampler: ...


class Readable(Protocol):
    """An image of a prompt."""

    @property
    def name(self) -> str: ...

    def load(self) -> LoadedImage: ...


def prompt_chunks(
    engine: Engine, prompt: str, images: Sequence[Readable], *, fresh: bool
) -> AbstractContextManager[list[Chunk]]:
    """A prompt, whose media markers stand for ``images``, as what the model reads; ``fresh`` where
    it begins a text. Raises ImageError.
    """
    bos = engine.vocab.text_of("bos")
    add_special = fresh and not (engine.vocab.adds_bos and bos and prompt.startswith(bos))
    if not images or engine.projector is None:
        from ecokv_local.projector import Chunk

        tokens = tuple(engine.vocab.tokenize(prompt, add_special=add_special))
        return nullcontext([Chunk(tokens, len(tokens), len(tokens))])
    loaded = [image.load() for image in images]
    return engine.projector.chunks(prompt.split(MEDIA_MARKER), loaded, add_special=add_special)


class Turn:
    """State and figures of one turn."""

    def __init__(
        self,
        host: Host,
        max_tokens: int | None,
        warnings: list[str],
        *,
        again: bool = False,
        n_shared: int = 0,
    ) -> None:
        """``again``: earlier turns are read once more, because the cache lost them. ``n_shared``
        tokens of the prompt were put into the cache without being read.
        """
        self._session = host
        self._context = host.context
        self._decoder = Utf8Decoder()
        self._max_tokens = max_tokens
        self.warnings = warnings
        self.text = ""  # of the answer
        self.text_read = ""  # the part of it whose tokens are in the cache
        self.prompt_read = False
        self.finish: FinishReason = "cancelled"
        self.truncated = False
        self.n_evictions = 0
        self._n_prompt = self._n_image_tokens = self._n_generated = self._n_evicted = 0
        self._rows_peak = self._context.n_rows
        self._ms = {"encode": 0.0, "prefill": 0.0, "evict": 0.0, "decode": 0.0}
        self._budget: int | None = None
        self._rows_left = 0  # by the last eviction: uneven budgets leave more rows than the budget
        self._again, self._in_parts, self._n_shared = again, False, n_shared

    def run(
        self, prompt: str, images: Sequence[ImageInput], texts: Texts = NO_TEXTS
    ) -> Iterator[Event]:
        """Read ``prompt``, whose media markers stand for ``images``, and generate an answer."""
        engine, start = self._session.engine, self._context.n_position
        with prompt_chunks(engine, prompt, images, fresh=start == 0) as chunks:
            spans = spans_of(engine.vocab, prompt, chunks, start, texts)
            yield from self.read(chunks, spans)
        if not self.prompt_read:
            return
        if self.n_evictions and self._session.eviction.shrink:
            self._context.shrink(self._session.eviction.slack + 1)
        yield from self._generate()

    # ---- reading

    def read(self, chunks: Sequence[Chunk], spans: Sequence[Span] = ()) -> Iterator[Event]:
        """Read a prompt and evict to the budget; ``prompt_read`` tells whether it got that far.

        ``spans`` are its images and texts that may have to stay.
        """
        self._n_prompt = sum(chunk.n_tokens for chunk in chunks)
        self._n_image_tokens = sum(c.n_tokens for c in chunks if c.is_image)
        self._check_units(chunks)
        self._resolve_budget()
        self._hold(spans)
        self._make_room(max((c.n_tokens for c in chunks if c.is_image), default=1))
        try:
            yield from self._prefill(chunks)
        except Stopped:
            return
        if self._session.stopping:
            return
        self.prompt_read = True
        self._evict_above(0)

    def _resolve_budget(self) -> None:
        eviction = self._session.eviction
        if eviction.enabled:
            n_tokens = self._context.n_tokens + self._n_prompt
            self._budget = eviction.pairs(n_tokens, max(1, self._context.bytes_per_row()))
            if eviction.raised(n_tokens):
                self.warnings.append(
                    f"budget {eviction.budget} of {n_tokens} tokens is below the smallest that "
                    f"works: {self._budget} KV pairs stay"
                )

    def _hold(self, spans: Sequence[Span]) -> None:
        """Book what may have to stay; refuse before anything is read what cannot."""
        context, eviction = self._context, self._session.eviction
        held = tuple(s for s in context.spans if s.kind != "question")
        context.spans = (*held, *spans)
        if self._budget is None:
            return
        for kind in eviction.protect:
            if not any(s.kind == kind for s in context.spans):
                self.warnings.append(f"protect {kind}: the prompt has none")
        if self._max_tokens is not None:
            n_rows = context.n_rows + self._n_prompt + self._max_tokens
            if n_rows <= self._budget:
                return  # nothing will go
        check_fits(eviction, self._budget, context.spans)

    def _check_units(self, chunks: Sequence[Chunk]) -> None:
        """An image whose tokens see each other has to fit a micro-batch; llama.cpp aborts else."""
        limit = self._context.n_ubatch
        for chunk in chunks:
            if chunk.at_once and chunk.n_tokens > limit:
                raise UsageError(
                    f"an image of {chunk.n_tokens} tokens does not fit a micro-batch of {limit}, "
                    "and this model reads an image in one piece",
                    hint=f"use --ubatch-size {chunk.n_tokens} or more",
                )
        end = self._context.n_position + sum(chunk.n_positions for chunk in chunks)
        trained = self._session.engine.n_ctx_train
        if end > trained > 0:
            self.warnings.append(f"the prompt ends at position {end}, the training at {trained}")

    def _make_room(self, largest: int) -> None:
        """Cells for the prompt and one token more; evicts before reading where that helps.

        What was read before may be longer than the cache: it is read in parts then, each evicted to
        the budget. ``largest`` part that cannot be cut.
        """
        context, need = self._context, self._n_prompt + 1
        in_parts = self._limit_cells(largest) or self._again
        end, window = context.n_position + need, context.n_swa
        if self._budget is not None and end > context.n_cells < window + largest:
            raise ContextFullError(
                f"the sliding-window layers need {window + largest} cells "
                f"(window {window} + {largest}), there are {context.n_cells}",
                hint=f"use --ctx-size {window + largest} or more",
            )
        held = context.n_rows
        if self._budget is not None and held + need > context.n_cells:
            held = self._most_left(held)
        if held + need > context.n_cells:
            left = self._most_left(context.n_cells)
            if in_parts and self._budget and left + largest + 1 <= context.n_cells:
                self._in_parts = True
                if self._session.eviction.prefill != "chunked":
                    what = "conversation" if self._again else "prompt"
                    self.warnings.append(
                        f"the {what} ({need - 1} tokens) is longer than the cache of "
                        f"{context.n_cells} cells: it was read in parts, each evicted to the budget"
                    )
                context.reserve(context.n_cells - context.n_rows)
                return
            budget = "" if self._budget is None else f" (budget {self._budget})"
            raise ContextFullError(
                f"the prompt needs {need} cells ({self._n_image_tokens} of them for images), "
                f"{context.n_cells - held} of {context.n_cells} are free{budget}",
                hint="raise --ctx-size, or "
                + ("use --prefill chunked" if self._budget else "keep less with --budget"),
            )
        if held < context.n_rows and self._budget is not None:
            self._evict(self._budget)
        context.reserve(need)  # before anything is read, once for all parts

    def _limit_cells(self, largest: int) -> bool:
        """No more cells than for the budget and a micro-batch, where that is wanted or all there is
        memory for; whether it is.
        """
        context, eviction = self._context, self._session.eviction
        context.limit = None
        if self._budget is None or eviction.prefill == "whole":
            return False
        if eviction.prefill == "auto":
            n_rows = min(context.n_cells, context.n_rows + self._n_prompt + 1)
            if n_rows <= context.n_allocated or not self._session.engine.on_host:
                return False
            free = free_bytes()  # the old buffers go when the new ones are there
            if free is None or n_rows * context.bytes_per_row() <= free:
                return False
        left = self._most_left(context.n_cells)
        cells = left + max(largest + 1, context.n_ubatch, eviction.slack)
        context.limit = -(-max(cells, context.n_swa + largest) // 256) * 256
        return True

    def _prefill(self, chunks: Sequence[Chunk]) -> Iterator[Event]:
        images = sum(chunk.is_image for chunk in chunks)
        done = 0
        for chunk in chunks:
            if self._session.stopping:
                return
            if chunk.is_image:
                done += 1
                self._room_for(chunk.n_tokens)
                yield Event("status", f"reading image {done}/{images} ({chunk.n_tokens} tokens)")
                projector = self._session.engine.projector
                assert projector is not None
                encode, prefill = projector.read_image(chunk, self._context)
                self._ms["encode"] += encode
                self._ms["prefill"] += prefill
            else:
                yield from self._read_text(chunk.tokens)
            self._rows_peak = max(self._rows_peak, self._context.n_rows)

    def _read_text(self, tokens: Sequence[int]) -> Iterator[Event]:
        start, step = 0, self._context.n_ubatch
        if self._in_parts and self._budget is not None:
            step = min(step, self._context.n_cells - self._most_left(self._context.n_cells) - 1)
        while start < len(tokens):
            if self._session.stopping:
                return
            if len(tokens) > step:
                yield Event("status", f"reading {start}/{len(tokens)} tokens")
            part = tokens[start : start + min(step, self._context.window_room)]
            self._room_for(len(part))
            clock = perf_counter()
            self._context.decode(part)
            start += len(part)
            self._ms["prefill"] += (perf_counter() - clock) * 1e3

    def add_prefill(self, seconds: float) -> None:
        """Time that went into tokens of the prompt elsewhere."""
        self._ms["prefill"] += seconds * 1e3

    # ---- eviction

    def _evict(self, pairs: int) -> None:
        clock = perf_counter()
        result = self._context.evict(self._session.eviction, pairs)
        self._ms["evict"] += (perf_counter() - clock) * 1e3
        self._n_evicted += result.n_evicted
        self._rows_left = result.n_after
        self.n_evictions += result.evicted
        if result.n_nonfinite:
            self.warnings.append(f"{result.n_nonfinite} KV pairs held NaN or Inf and were left out")

    def _room_for(self, n_tokens: int) -> None:
        """While reading in parts: evict where the next part and a token more would not fit."""
        context = self._context
        if self._in_parts and context.n_rows + n_tokens + 1 > context.n_cells:
            self._evict_above(0)

    def _evict_above(self, slack: int) -> None:
        if self._budget is None:
            return
        if self._context.n_rows > max(self._budget, self._rows_left) + slack:
            self._evict(self._budget)

    def _most_left(self, n_rows: int) -> int:
        """The most rows that an eviction can leave of ``n_rows``."""
        if self._budget is None:
            return n_rows
        return self._context.rows_max(self._session.eviction, self._budget, n_rows)

    # ---- generation

    def _generate(self) -> Iterator[Event]:
        while (token := self.draw()) is not None:
            clock = perf_counter()
            try:
                self._context.decode([token])
            except Stopped:
                break
            piece = self.accept(token, perf_counter() - clock)
            if piece:
                yield Event("text", piece)
            self.settle()
        rest = self.end()
        if rest:
            yield Event("text", rest)

    def draw(self, output: int = -1) -> int | None:
        """The next token, from an output of the last decode (-1: the last one). None where the
        answer ends: ``finish`` says why.
        """
        session = self._session
        if session.stopping:
            return None
        if self._max_tokens is not None and self._n_generated >= self._max_tokens:
            self.finish = "length"
            return None
        clock = perf_counter()
        sampler = session.sampler()
        if self._n_generated == 0:
            sampler.restart()
        token = sampler.next(self._context.ptr, output)
        if session.engine.vocab.ends(token):
            self.finish = "stop"
            return None
        if self._full(session.engine.n_ctx_train):
            return None
        self._ms["decode"] += (perf_counter() - clock) * 1e3
        return token

    def accept(self, token: int, seconds: float) -> str:
        """Book a token that was decoded; the text that it completes."""
        piece = self._decoder.feed(self._session.engine.vocab.piece(token))
        self._n_generated += 1
        self._ms["decode"] += seconds * 1e3
        self._rows_peak = max(self._rows_peak, self._context.n_rows)
        self.text += piece
        self.text_read = self.text
        return piece

    def settle(self) -> None:
        """Evict where the answer has grown past the budget and its slack."""
        self._evict_above(self._session.eviction.slack)

    def end(self) -> str:
        """What is left of the text."""
        rest = self._decoder.flush()
        self.text += rest
        self.text_read = self.text
        return rest

    def _full(self, limit: int) -> bool:
        """No room for another token: the answer ends, and says so."""
        context = self._context
        if self._max_tokens is None and context.n_position >= limit:
            self.warnings.append(f"stopped at position {limit}, where the model's training ended")
        elif context.window_room < 1:
            self.warnings.append(
                f"the {context.n_cells} cells of the sliding-window layers are full: "
                f"raise --ctx-size above {context.n_swa}"
            )
        elif context.n_rows + 1 > context.n_cells:
            self._evict_above(0)
            if context.n_rows + 1 <= context.n_cells:
                return False
            self.warnings.append(
                f"the cache of {context.n_cells} cells is full: "
                "raise --ctx-size, or give a --budget"
            )
        else:
            return False
        self.finish, self.truncated = "length", True
        return True

    # ---- record

    def record(self) -> Answer:
        """The figures of the turn so far."""
        session, context = self._session, self._context
        per_row = context.bytes_per_row()
        seconds = self._ms["decode"] / 1e3
        eviction = session.eviction
        values: dict[str, Any] = {f"t_{k}_ms": round(v, 3) for k, v in self._ms.items()}
        return Answer(
            text=self.text,
            finish_reason=self.finish,
            truncated=self.truncated,
            model=str(session.engine.model_path),
            mmproj=str(session.engine.mmproj_path) if session.engine.mmproj_path else None,
            budget=str(eviction.budget) if eviction.enabled else None,
            policy=eviction.policy if eviction.enabled else "none",
            n_prompt=self._n_prompt + self._n_shared,
            n_image_tokens=self._n_image_tokens,
            n_kept=context.n_rows,
            n_evicted=self._n_evicted,
            kv_bytes=per_row * context.n_rows - context.hole_bytes(),
            kv_bytes_peak=per_row * max(self._rows_peak, context.n_rows),
            tokens_per_s=round(self._n_generated / seconds, 2) if seconds > 0 else 0.0,
            warnings=tuple(self.warnings),
            **values,
        )
