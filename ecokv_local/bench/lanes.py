"""One repetition of one case: its cache is made anew, evicted, and decodes."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from ecokv_local.bench.peak import peak_bytes, reset_peak
from ecokv_local.bench.plan import N_DECODE, N_WARM, Case
from ecokv_local.bench.prompt import Prompt
from ecokv_local.bench.rows import Sample
from ecokv_local.caption.progress import resident_bytes
from ecokv_local.fork import restore_rows

if TYPE_CHECKING:
    from ecokv_local.bench.stock import Stock
    from ecokv_local.context import Context, EvictionResult
    from ecokv_local.engine import Engine


def measure(engine: Engine, case: Case, prompt: Prompt, n_decode: int = N_DECODE) -> Sample:
    """Make the cache of ``case``, evict it, decode ``n_decode`` tokens one by one.

    It exists only meanwhile: there is one at a time, and every repetition has other memory.
    """
    config = case.config
    since = reset_peak()
    # a small cache grows: that of a budget has to end as small as a session's
    first = 1 if config.enabled else None
    context = engine.context(_cells(case.depth), n_first=first)
    try:
        if config.enabled:
            context.enable(config.window)
        saved = prompt.saved[case.depth]
        restore_rows(context, saved)
        for at in range(saved.mark.n_position, case.depth, context.n_batch):
            context.decode(prompt.tokens[at : min(at + context.n_batch, case.depth)])
        context.logits()  # waits for a device that works on
        kv_peak = context.kv_bytes()
        result = _evict(context, case) if config.enabled else None
        n_kept = context.n_rows
        _append(context, prompt, N_WARM)
        clock = perf_counter()
        _append(context, prompt, n_decode)
        seconds = perf_counter() - clock
        now, peak = resident_bytes(), peak_bytes() if since else None
        held = prompt.held_bytes
        return Sample(
            tokens_per_s=n_decode / seconds,
            n_kept=n_kept,
            features_ms=result.t_features_ms if result else 0.0,
            plan_ms=result.t_plan_ms if result else 0.0,
            apply_ms=result.t_apply_ms if result else 0.0,
            kv_bytes=context.kv_bytes(),
            kv_peak_bytes=kv_peak,
            resident_bytes=None if now is None else max(0, now - held),
            peak_resident_bytes=None if peak is None else max(0, peak - held),
        )
    finally:
        context.close()


def measure_stock(stock: Stock, case: Case, prompt: Prompt, n_decode: int = N_DECODE) -> Sample:
    """The same in the process with unpatched libraries, whose cache is always full."""
    saved = prompt.saved[case.depth]
    stock.open(_cells(case.depth))
    stock.restore(case.depth, saved)
    stock.read(prompt.tokens[saved.mark.n_position : case.depth])
    stock.decode(prompt.tokens[case.depth :][:N_WARM])
    seconds = stock.decode(prompt.tokens[case.depth + N_WARM :][:n_decode])
    return Sample(tokens_per_s=n_decode / seconds, n_kept=case.depth)


def _cells(depth: int) -> int:
    return depth + N_WARM + N_DECODE


def _evict(context: Context, case: Case) -> EvictionResult:
    config = case.config
    pairs = config.pairs(context.n_tokens, max(1, context.bytes_per_row()))
    result = context.evict(config, pairs)
    if config.shrink:
        context.shrink(max(config.slack, N_WARM + N_DECODE) + 1)
    return result


def _append(context: Context, prompt: Prompt, n: int) -> None:
    """Decode ``n`` tokens one by one."""
    for _ in range(n):
        context.decode([prompt.tokens[context.n_position]])
    context.logits()
