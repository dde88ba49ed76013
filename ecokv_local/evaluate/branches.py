"""Many answers from one reading: the prompt is read once, every variant goes on from a copy.

All variants of an item see the same rows, bit for bit; what differs is which of them stay. They are
decoded together, one sequence each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ecokv_local import inspection
from ecokv_local.config import EvictionConfig
from ecokv_local.errors import ContextFullError, EcokvError
from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.variants import Variant, pairs_for
from ecokv_local.fork import Saved, restore_rows, save_rows
from ecokv_local.groups import Texts, spans_of
from ecokv_local.parallel_cache import Stream, Streams
from ecokv_local.prompt import neutralise
from ecokv_local.session import user_message
from ecokv_local.turn import prompt_chunks
from ecokv_local.window import with_system

if TYPE_CHECKING:
    from ecokv_local.context import Context
    from ecokv_local.engine import Engine
    from ecokv_local.projector import Chunk

#: Sequences that are decoded together.
N_STREAMS = 12
#: As many as can have heads of different length, beside the one that reads.
_UNEVEN_STREAMS = 3


@dataclass(frozen=True)
class Reply:
    """An answer, KV pairs per layer and KV head that it began with, and tokens of the prompt."""

    text: str
    n_kept: int
    n_prompt: int


@dataclass(frozen=True)
class Start:
    """Where an answer begins: rows, those that stay (None: all), tokens still to be read, and the
    first token of the answer, where it is known already.
    """

    rows: Saved
    keep: inspection.I32 | None
    tokens: tuple[int, ...]
    first: int | None = None

    @property
    def n_kept(self) -> int:
        """Rows when the first token of the answer is chosen, at most."""
        held = self.rows.mark.n_rows if self.keep is None else self.keep.shape[-1]
        return held + len(self.tokens)


class Watch(Protocol):
    """Who wants to know more than the answers: called while an item is read."""

    def prompt(self, chunks: Sequence[Chunk]) -> None:
        """The prompt, as the model reads it."""

    def kept(
        self,
        context: Context,
        variant: Variant,
        config: EvictionConfig,
        features: dict[str, Any],
        pairs: int,
        keep: inspection.I32,
    ) -> None:
        """What a variant keeps of ``context``, by these features (``inspection.features``)."""


class Reader:
    """Reads items and answers them in every variant. Owns a native context: one sequence reads,
    the others answer.
    """

    def __init__(
        self,
        engine: Engine,
        variants: Sequence[Variant],
        n_ctx: int,
        n_streams: int = N_STREAMS,
        watch: Watch | None = None,
    ) -> None:
        self._watch = watch
        self.engine, self.variants, self.n_ctx = engine, tuple(variants), n_ctx
        self._policies = list({v.policy.label: v.policy for v in variants if v.policy}.values())
        self._window = max((p.config.window for p in self._policies), default=1)
        self._template = engine.chat_template()
        config = EvictionConfig(budget=n_ctx) if self._policies else EvictionConfig()
        if any(p.config.pyramid or p.config.ada for p in self._policies):
            n_streams = min(n_streams, _UNEVEN_STREAMS)
        n_streams = max(1, min(n_streams, len(self.variants)))
        self._streams = Streams(engine, n_streams + 1, n_ctx, config, threads=engine.threads)
        self._base, *self._places = self._streams.all
        if self._policies:
            self._base.enable(self._window)

    # ---- one item

    def answers(self, item: Item, variants: Sequence[Variant] | None = None) -> list[Reply]:
        """A reply for each of ``variants`` (all of them). Raises ContextFullError for an item that
        is too long, and ImageError.
        """
        starts, n_prompt = self._prepare(item, self.variants if variants is None else variants)
        replies: list[Reply] = []
        for i in range(0, len(starts), len(self._places)):
            group = starts[i : i + len(self._places)]
            texts_said = self._generate(group, item.max_tokens)
            replies += [
                Reply(text, start.n_kept, n_prompt)
                for text, start in zip(texts_said, group, strict=True)
            ]
        return replies

    def look(self, item: Item) -> None:
        """Read an item, and answer nothing: for the watcher. Raises as ``answers``."""
        self._prepare(item, self.variants)

    def _prepare(self, item: Item, variants: Sequence[Variant]) -> tuple[list[Start], int]:
        """Where each variant goes on from, and tokens of the prompt."""
        said = f"{item.text}\n\n{item.question}" if item.text else item.question
        message = user_message(self.engine, said, item.images())
        inputs, messages = message.images, with_system(item.system, [message])
        prompt = self._template.render(messages).text
        adapters = self.engine.adapters(seeing=bool(inputs))
        self._base.clear()
        self._streams.context.set_adapters(adapters)
        with prompt_chunks(self.engine, prompt, inputs, fresh=True) as chunks:
            if self._watch is not None:
                self._watch.prompt(chunks)
            self._check_length(item, chunks)
            texts = Texts("", neutralise(item.question).strip())
            spans = spans_of(self.engine.vocab, prompt, chunks, 0, texts)
            question = next((s.start for s in spans if s.kind == "question"), None)
            starts = self._starts(item, chunks, question, variants)
        return starts, sum(chunk.n_tokens for chunk in chunks)

    def _check_length(self, item: Item, chunks: Sequence[Chunk]) -> None:
        need = sum(chunk.n_tokens for chunk in chunks) + item.max_tokens
        if need > self._base.n_cells:
            raise ContextFullError(
                f"{item.task} {item.name}: {need} tokens with the answer, there are "
                f"{self._base.n_cells} cells",
                hint=f"use --ctx-size {need} or more",
            )

    def _starts(
        self, item: Item, chunks: Sequence[Chunk], question: int | None, variants: Sequence[Variant]
    ) -> list[Start]:
        """Read the prompt, stopping where something is evicted; ``question`` is the position at
        which it begins.
        """
        base, tail = self._base, chunks[-1]
        if tail.is_image or tail.n_tokens < 2:
            raise EcokvError("the chat template ends the prompt with an image")
        start = sum(chunk.n_positions for chunk in chunks) - tail.n_tokens
        cut = 0 if question is None else max(0, question - start)
        found: dict[str, Start] = {}
        for chunk in chunks[:-1]:
            self._read(chunk)
        if any(v.when == "before" and v.policy for v in variants):
            self._decode(tail.tokens[:cut])
            rows = save_rows(base)
            before = [v for v in variants if v.when == "before" and v.policy]
            for variant, keep in self._kept(item, before):
                found[variant.label] = Start(rows, keep, tail.tokens[cut:])
            self._decode(tail.tokens[cut:-1])
        else:
            self._decode(tail.tokens[:-1])
        rows, last = save_rows(base), tail.tokens[-1:]
        self._decode(last)
        first = int(base.logits().argmax())
        whole = save_rows(base) if any(v.when == "chat" for v in variants) else rows
        after = [v for v in variants if v.when != "before" and v.policy]
        for variant, keep in self._kept(item, after):
            if variant.when == "chat":
                found[variant.label] = Start(whole, keep, (), first)
            else:  # the last token always stays, as the last row: it is read again
                found[variant.label] = Start(rows, keep[..., :-1], last)
        full = Start(rows, None, last)
        return [found.get(variant.label, full) for variant in variants]

    def _read(self, chunk: Chunk) -> None:
        if not chunk.is_image:
            self._decode(chunk.tokens)
            return
        assert self.engine.projector is not None
        self.engine.projector.read_image(chunk, self._base)

    def _decode(self, tokens: Sequence[int]) -> None:
        for i in range(0, len(tokens), self._base.n_batch):
            self._base.decode(tokens[i : i + self._base.n_batch])

    def _kept(
        self, item: Item, variants: Sequence[Variant]
    ) -> Iterator[tuple[Variant, inspection.I32]]:
        """The kept set of each variant, of what is in the base now; nothing is changed."""
        base, row_bytes = self._base, max(1, self._base.bytes_per_row()) if variants else 1

        def settings(variant: Variant) -> tuple[int, int, int, str]:
            config = variant.config(0)
            return config.window, config.n_sinks, config.n_recent, config.gqa

        ordered = sorted(variants, key=settings, reverse=True)  # rings only get smaller: none lost
        for (window, sinks, recent, gqa), group in groupby(ordered, settings):
            base.enable(window)
            arrays = inspection.features(base, sinks=sinks, recent=recent, gqa=gqa)
            for variant in group:
                assert variant.budget is not None
                pairs = pairs_for(variant.budget, self._policies, base.n_rows, row_bytes)
                if pairs >= base.n_rows:
                    everything = np.arange(base.n_rows, dtype=np.int32)
                    keep = np.broadcast_to(everything, arrays["attn"].shape)
                else:
                    keep = inspection.plan(arrays, variant.config(item.seed), pairs)
                if self._watch is not None:
                    self._watch.kept(base, variant, variant.config(item.seed), arrays, pairs, keep)
                yield variant, keep
        if variants:
            base.enable(self._window)

    # ---- answers

    def _generate(self, starts: Sequence[Start], max_tokens: int) -> list[str]:
        """Greedy answers, decoded together."""
        streams, vocab = self._streams, self.engine.vocab
        said = [b""] * len(starts)
        tokens: list[int | None] = [start.first for start in starts]
        for stream, start in zip(self._places, starts, strict=False):
            _begin(stream, start)
        self._read_tails(starts, tokens)
        for n_said in range(max_tokens):
            tokens = [None if t is None or vocab.ends(t) else t for t in tokens]
            going = [(i, token) for i, token in enumerate(tokens) if token is not None]
            for i, token in going:
                said[i] += vocab.piece(token)
            if not going or n_said == max_tokens - 1:
                break
            streams.step([(self._places[i], token) for i, token in going])
            for output, (i, _) in enumerate(going):
                tokens[i] = _likeliest(streams.context, output)
        return [text.decode("utf-8", "replace") for text in said]

    def _read_tails(self, starts: Sequence[Start], tokens: list[int | None]) -> None:
        """Read what is still to be read in each sequence, and choose the first tokens."""
        context = self._streams.context
        group: list[int] = []
        for i, start in enumerate(starts):
            size = sum(len(starts[j].tokens) for j in group) + len(start.tokens)
            if group and size > context.n_batch:
                self._read_group(starts, group, tokens)
                group = []
            if start.tokens:
                group.append(i)
        if group:
            self._read_group(starts, group, tokens)

    def _read_group(
        self, starts: Sequence[Start], group: Sequence[int], tokens: list[int | None]
    ) -> None:
        context = self._streams.context
        entries: list[tuple[int, int, int, bool]] = []
        ends = []
        for i in group:
            stream, unread = self._places[i], starts[i].tokens
            for j, token in enumerate(unread):
                position = stream.n_position + j
                entries.append((token, position, stream.seq, j == len(unread) - 1))
            ends.append(len(entries) - 1)
        context.decode_batch(entries)
        for i, end in zip(group, ends, strict=True):
            n = len(starts[i].tokens)
            self._places[i].appended(n, n)
            tokens[i] = _likeliest(context, end)

    def close(self) -> None:
        """Free the native context; idempotent."""
        self._streams.close()


def _begin(stream: Stream, start: Start) -> None:
    stream.clear()
    restore_rows(stream, start.rows)
    if start.keep is not None and start.keep.shape[-1] < start.rows.mark.n_rows:
        inspection.apply(stream, start.keep)


def _likeliest(context: Context, output: int) -> int:
    return int(np.argmax(context.logits(output)))
