"""A prompt of real tokens, read once; every depth goes on from a copy of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING

from ecokv_local.bench.rows import Prefill
from ecokv_local.evaluate.builtin import text_needles
from ecokv_local.fork import Saved, save_rows

if TYPE_CHECKING:
    from ecokv_local.bench.stock import Stock
    from ecokv_local.engine import Engine
    from ecokv_local.vocab import Vocab

_WARM = 16


@dataclass
class Prompt:
    """The tokens, the rows up to a little before each depth, and how fast they were read. What
    follows until the depth is read anew into every cache: its queries vote.
    """

    tokens: list[int]
    saved: dict[int, Saved] = field(default_factory=dict)
    prefill: dict[int, Prefill] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Bytes of the copies."""
        return sum(len(saved.data) for saved in self.saved.values())


def text_tokens(vocab: Vocab, n: int) -> list[int]:
    """The first ``n`` tokens of a made text that is always the same."""
    tokens: list[int] = vocab.tokenize("", add_special=True)
    items = text_needles("validation")
    while len(tokens) < n:
        text = " ".join(item.text for item in islice(items, 8))
        tokens += vocab.tokenize(f" {text}")
    return tokens[:n]


def read_prompt(
    engine: Engine,
    tokens: Sequence[int],
    depths: Sequence[int],
    *,
    tail: int,
    stock: Stock | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Prompt:
    """Read ``tokens`` up to the deepest of ``depths``; rows are saved ``tail`` tokens before each.
    The unpatched libraries read the same, a batch each in turn. When ``stopped``, what is complete.
    """
    found = Prompt(list(tokens))
    starts = {depth: max(1, depth - tail) for depth in depths}
    deepest, ours, theirs = max(depths), 0.0, 0.0
    context = engine.context(deepest)
    try:
        context.decode(tokens[: min(_WARM, deepest)])
        context.logits()
        context.clear()
        if stock is not None:
            stock.open(deepest, warm=list(tokens[: min(_WARM, deepest)]))
        for end in sorted({*depths, *starts.values()}):
            while context.n_position < end:
                if stopped():
                    return found
                progress(context.n_position, deepest)
                at = context.n_position
                batch = list(tokens[at : min(at + context.n_batch, end)])
                clock = perf_counter()
                context.decode(batch)
                context.logits()  # waits for a device that works on
                ours += perf_counter() - clock
                if stock is not None:
                    theirs += stock.read(batch)
            for depth in (d for d, start in starts.items() if start == end):
                found.saved[depth] = save_rows(context)
            if end in starts:
                speed = None if stock is None else end / max(theirs, 1e-9)
                found.prefill[end] = Prefill(end / max(ours, 1e-9), speed)
    finally:
        context.close()
    return found
