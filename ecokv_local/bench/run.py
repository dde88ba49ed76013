"""Read the deepest prompt once, make every case from it, and let them take turns at decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ecokv_local.bench.plan import Case, Measured, Row, rows
from ecokv_local.bench.stock import Stock
from ecokv_local.context import Mark
from ecokv_local.errors import UsageError
from ecokv_local.fork import Saved, restore_rows, save_rows

if TYPE_CHECKING:
    from ecokv_local.context import Context
    from ecokv_local.engine import Engine

#: Tokens that every repetition decodes.
N_DECODE = 32
#: Tokens that are read into every case, so that their queries vote.
_TAIL = 64
#: Any token will do: speed does not depend on it.
_STRIDE = 7919


@dataclass
class _Prompt:
    """A prompt of made-up tokens, read up to each depth less the tail."""

    saved: dict[int, Saved]
    tokens_per_s: dict[int, float]


def run(
    engine: Engine,
    cases: Sequence[Case],
    *,
    repetitions: int,
    stock: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """Measure ``cases``; when ``stopped``, what is complete so far.

    Raises UsageError for a depth beyond what the model was trained for.
    """
    deepest = max(case.depth for case in cases)
    if deepest + N_DECODE > engine.n_ctx_train:
        raise UsageError(
            f"depth {deepest} and {N_DECODE} tokens more are beyond the {engine.n_ctx_train} "
            "positions that the model was trained for",
            hint=f"use depths up to {engine.n_ctx_train - N_DECODE}",
        )
    prompt = _read(engine, sorted({case.depth for case in cases}), progress, stopped)
    lanes: list[_Lane] = []
    try:
        for i, case in enumerate(cases):
            if stopped():
                return []
            progress(f"making cache {i + 1} of {len(cases)}")
            kind = _StockLane if case.stock else _Lane
            lanes.append(kind(engine, case, prompt.saved[case.depth], stock))
        for lane in lanes:  # warm up
            lane.decode(2)
        for i in range(repetitions):
            for j, lane in enumerate(lanes):
                if stopped():
                    break
                progress(f"repetition {i + 1} of {repetitions}, cache {j + 1} of {len(lanes)}")
                lane.measured.speeds += (N_DECODE / lane.decode(N_DECODE),)
    finally:
        for lane in lanes:
            lane.close()
    cache = f"{engine.cache_type_k}/{engine.cache_type_v}"
    return rows([lane.measured for lane in lanes], prompt.tokens_per_s, cache)


def peak_resident_bytes() -> int | None:
    """The most main memory that this process has held; None where the system does not tell."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _token(context: Context, position: int) -> int:
    return (position * _STRIDE) % context.n_vocab


def _read(
    engine: Engine,
    depths: Sequence[int],
    progress: Callable[[str], None],
    stopped: Callable[[], bool],
) -> _Prompt:
    context = engine.context(depths[-1])
    found, seconds = _Prompt({}, {}), 0.0
    try:
        for depth in depths:
            for end in (max(1, depth - _TAIL), depth):
                while context.n_position < end and not stopped():
                    n = min(context.n_batch, end - context.n_position)
                    progress(f"reading {context.n_position} of {depths[-1]} tokens")
                    tokens = [_token(context, context.n_position + i) for i in range(n)]
                    clock = perf_counter()
                    context.decode(tokens)
                    seconds += perf_counter() - clock
                if end < depth:
                    found.saved[depth] = save_rows(context)
            found.tokens_per_s[depth] = depth / max(seconds, 1e-9)
    finally:
        context.close()
    return found


class _Lane:
    """A case and its cache."""

    def __init__(self, engine: Engine, case: Case, saved: Saved, stock: str | Path | None) -> None:
        self.measured = Measured(case, n_kept=case.depth)
        config = case.config
        cells = case.depth + N_DECODE + 1
        # a small cache grows: that of a budget has to end as small as a session's
        self._context: Context = engine.context(cells, n_first=1 if config.enabled else None)
        try:
            if config.enabled:
                self._context.enable(config.window)
            restore_rows(self._context, saved)
            self._append(case.depth - self._context.n_position)
            if config.enabled:
                self._evict()
        except BaseException:
            self._context.close()
            raise
        self.measured.n_kept = self._context.n_rows
        self.measured.kv_bytes = self._context.kv_bytes()
        self._mark: Mark = self._context.mark()

    def _evict(self) -> None:
        context, config = self._context, self.measured.case.config
        pairs = config.pairs(context.n_tokens, max(1, context.bytes_per_row()))
        result = context.evict(config, pairs)
        self.measured.features_ms = result.t_features_ms
        self.measured.plan_ms, self.measured.apply_ms = result.t_plan_ms, result.t_apply_ms
        context.shrink(max(config.slack, N_DECODE) + 1)

    def _append(self, n: int) -> None:
        context = self._context
        context.decode([_token(context, context.n_position + i) for i in range(n)])

    def decode(self, n: int) -> float:
        """Decode ``n`` tokens one by one and take them back; seconds."""
        start = perf_counter()
        for _ in range(n):
            self._append(1)
        self._context.logits()  # waits for a device that works on
        seconds = perf_counter() - start
        self._context.rollback(self._mark)
        return seconds

    def close(self) -> None:
        """Free the cache."""
        self._context.close()


class _StockLane(_Lane):
    """The full cache in a process with unpatched libraries."""

    def __init__(self, engine: Engine, case: Case, saved: Saved, stock: str | Path | None) -> None:
        assert stock is not None
        self.measured = Measured(case, n_kept=case.depth)
        self._stock = Stock(Path(stock), engine, case.depth + N_DECODE + 1)
        self._stock.restore(saved, case.depth)

    def decode(self, n: int) -> float:
        """As for our own."""
        return self._stock.decode(n)

    def close(self) -> None:
        """End the process."""
        self._stock.close()
