"""Read the deepest prompt once, and let all cases take turns at being made and at decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ecokv_local.bench.lanes import measure, measure_stock
from ecokv_local.bench.plan import N_DECODE, N_WARM, Case
from ecokv_local.bench.prompt import Prompt, read_prompt, text_tokens
from ecokv_local.bench.rows import Measured, Row, rows
from ecokv_local.bench.stock import Stock

if TYPE_CHECKING:
    from ecokv_local.engine import Engine

#: Tokens that are read anew into every cache, at least: their queries vote.
_TAIL = 16


def run(
    engine: Engine,
    cases: Sequence[Case],
    *,
    repetitions: int,
    stock: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """Measure ``cases``; when ``stopped``, those of them that are complete so far.

    ``stock`` is the folder of unpatched libraries, which the cases of that kind need. Raises
    UsageError if it holds none.
    """
    other = None
    if any(case.stock for case in cases):
        assert stock is not None
        other = Stock(Path(stock), engine)
    measured = [Measured(case) for case in cases]
    try:
        prompt = _prompt(engine, cases, other, progress, stopped)
        _rounds(engine, measured, prompt, other, repetitions, progress, stopped)
    finally:
        if other is not None:
            other.close()
    return rows(
        measured,
        prompt.prefill,
        model=engine.model_path.name,
        threads=engine.threads,
        cache=f"{engine.cache_type_k}/{engine.cache_type_v}",
    )


def _prompt(
    engine: Engine,
    cases: Sequence[Case],
    stock: Stock | None,
    progress: Callable[[str], None],
    stopped: Callable[[], bool],
) -> Prompt:
    depths = sorted({case.depth for case in cases})
    tokens = text_tokens(engine.vocab, depths[-1] + N_WARM + N_DECODE)
    left = _Left("reading, token", progress)
    window = max((case.config.window for case in cases if case.config.enabled), default=1)
    return read_prompt(
        engine,
        tokens,
        depths,
        tail=max(_TAIL, window),
        stock=stock,
        progress=left,
        stopped=stopped,
    )


def _rounds(
    engine: Engine,
    measured: Sequence[Measured],
    prompt: Prompt,
    stock: Stock | None,
    repetitions: int,
    progress: Callable[[str], None],
    stopped: Callable[[], bool],
) -> None:
    """A short round to warm up, which does not count, and then those that do; every second one
    backwards, so that a machine that becomes slower does not favour the first.
    """
    total = len(measured) * (repetitions + 1)
    left = _Left("measuring, cache", progress)
    done = 0
    for i in range(repetitions + 1):
        for m in measured if i % 2 == 0 else measured[::-1]:
            if stopped():
                return
            left(done, total)
            n_decode = N_DECODE if i else 1
            if m.case.stock:
                assert stock is not None
                sample = measure_stock(stock, m.case, prompt, n_decode)
            else:
                sample = measure(engine, m.case, prompt, n_decode)
            if i:
                m.samples.append(sample)
            done += 1


class _Left:
    """Tells how far it is, and how long the rest of this part may take."""

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self._what, self._say, self._start = what, say, perf_counter()

    def __call__(self, done: int, total: int) -> None:
        text = f"{self._what} {done + 1} of {total}"
        if done:
            seconds = (perf_counter() - self._start) / done * (total - done)
            text += f", about {seconds:.0f} s left"
        self._say(text)
