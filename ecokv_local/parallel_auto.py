"""How many sequences to generate at once: by cores, memory and a short probe."""

from __future__ import annotations

from threading import Barrier, Thread
from time import perf_counter
from typing import TYPE_CHECKING

from ecokv_local.config import EvictionConfig
from ecokv_local.errors import EcokvError
from ecokv_local.memory import free_bytes, kv_bytes
from ecokv_local.parallel_cache import Streams

if TYPE_CHECKING:
    from ecokv_local.engine import Engine

#: Sequences that are worth a crew of their own, and how many crews there may be.
CREW = 4
MAX_CREWS = 4

_FEW = 16  # requests, up to which nothing is tried
_SIZES = (1, 2, 4, 8, 16, 32)
_STEPS = 3
_SECONDS = 3.0  # after which no larger size is tried
_GAIN = 1.05  # in tokens/s, for which more memory is worth its while
_SHARE = 4  # of the free memory, one in this many


def crews(n: int, threads: int, *, on_host: bool) -> list[int]:
    """How many of ``n`` sequences each crew has."""
    count = max(1, min(n // CREW, threads, MAX_CREWS)) if on_host else 1
    return [n // count + (i < n % count) for i in range(count)]


def auto_parallel(engine: Engine, n_requests: int | None = None, *, n_cells: int = 512) -> int:
    """Sequences that give most tokens/s together, of ``n_cells`` cells each; the fewest of those
    that are about as good. A probe of a few seconds, which a few requests are not worth.
    """
    if n_requests is not None and n_requests <= _FEW:
        return max(1, min(n_requests, CREW, _most(engine, n_cells)))
    begin, best, chosen = perf_counter(), 0.0, 1
    for n in _SIZES:
        if n > 1 and (n > _most(engine, n_cells) or perf_counter() - begin > _SECONDS):
            break
        try:
            rate = _rate(engine, n, n_cells)
        except EcokvError:
            if n == 1:
                raise
            break
        if rate > best * _GAIN:
            best, chosen = rate, n
    return chosen


def _most(engine: Engine, n_cells: int) -> int:
    """Sequences that a share of the free memory holds."""
    free, one = free_bytes(), kv_bytes(engine.meta, n_cells, *engine.cache_types)
    return max(_SIZES) if free is None or not one else free // _SHARE // one


def _rate(engine: Engine, n: int, n_cells: int) -> float:
    """Tokens/s of ``n`` sequences, the crews working at the same time."""
    sizes = crews(n, engine.threads, on_host=engine.on_host)
    threads = max(1, engine.threads // len(sizes))
    batches: list[Streams] = []
    errors: list[EcokvError] = []
    together = Barrier(len(sizes) + 1)

    def work(batch: Streams) -> None:
        together.wait()
        try:
            for _ in range(_STEPS):
                batch.step([(stream, 0) for stream in batch.all])
        except EcokvError as error:
            errors.append(error)

    try:
        for size in sizes:
            batch = Streams(engine, size, n_cells, EvictionConfig(), threads=threads)
            batches.append(batch)
            batch.context.set_adapters(engine.adapters(seeing=engine.has_vision))
            batch.step([(stream, 0) for stream in batch.all])  # the first one allocates
        workers = [Thread(target=work, args=(batch,)) for batch in batches]
        for worker in workers:
            worker.start()
        together.wait()
        start = perf_counter()
        for worker in workers:
            worker.join()
        seconds = perf_counter() - start
    finally:
        for batch in batches:
            batch.close()
    if errors:
        raise errors[0]
    return n * _STEPS / seconds
