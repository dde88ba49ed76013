"""Many independent requests at once: sequences that generate in one batch, each with its own cache.

A request enters as soon as another has ended: its images are decoded and cut to the model's size in
the background, then they are encoded and read between two steps of the batch.

On the cores of one machine the batch is split into crews, each with a context and threads of its
own: a step of a small model is short, and threads that wait for each other inside it lose more than
a wider batch gains.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from ecokv_local.config import EvictionConfig, SamplingConfig, whole_number
from ecokv_local.context import Stopped
from ecokv_local.errors import StateError, UsageError
from ecokv_local.parallel_auto import auto_parallel, crews
from ecokv_local.parallel_batch import Batch
from ecokv_local.parallel_feed import Feed, Outcome, Request
from ecokv_local.session import check_text

if TYPE_CHECKING:
    from ecokv_local.engine import Engine

MAX_PARALLEL = 1024

__all__ = ["MAX_PARALLEL", "Outcome", "Request", "auto_parallel", "generate"]


def generate(
    engine: Engine,
    requests: Iterable[Request],
    *,
    parallel: int = 1,
    system: str | None = None,
    eviction: EvictionConfig | None = None,
    sampling: SamplingConfig | None = None,
    n_ctx: int | None = None,
) -> Generator[tuple[Request, Outcome], None, None]:
    """Answer requests, ``parallel`` of them at a time, in the order in which they end.

    A request that fails gives its error and stops no other one. Requests are taken from the
    iterable when they are needed, a few ahead; no more than ``parallel`` are begun whose answers
    were not asked for yet. ``n_ctx`` cells for each of them; left out, as many as the requests
    need. With a seed, the answer to a request does not depend on its neighbours.

    Times of an answer are those that passed on the clock: a step of the batch counts for every
    answer in it. Closing the iterator frees everything. Raises UsageError for settings that cannot
    work, ModelError for a budget on a memory that cannot be evicted.
    """
    whole_number("parallel", parallel, 1, MAX_PARALLEL)
    check_text("the system prompt", system or "")
    # cells are shared out once: the next request needs what this one gives back
    eviction = replace(eviction or EvictionConfig(), shrink=False)
    if eviction.prefill == "chunked":
        raise UsageError("prefill 'chunked' is for one conversation at a time")
    feed = Feed(engine, requests, parallel, system=system, eviction=eviction, n_ctx=n_ctx)
    return _answers(_Run(engine, feed, parallel, eviction, sampling or SamplingConfig()))


def _answers(run: _Run) -> Generator[tuple[Request, Outcome], None, None]:
    try:
        while run.feed.fill():
            yield run.next()
            run.feed.release()
    finally:
        run.close()


class _Run:
    """The crews at work, each in a thread."""

    def __init__(
        self,
        engine: Engine,
        feed: Feed,
        parallel: int,
        eviction: EvictionConfig,
        sampling: SamplingConfig,
    ) -> None:
        self.feed = feed
        self._results: SimpleQueue[tuple[Request, Outcome] | BaseException] = SimpleQueue()
        sizes = crews(parallel, engine.threads, on_host=engine.on_host)
        threads = max(1, engine.threads // len(sizes))
        self._batches = [Batch(engine, n, eviction, sampling, threads=threads) for n in sizes]
        self._threads: list[Thread] = []
        engine.attach(self)

    def next(self) -> tuple[Request, Outcome]:
        """The next answer. Raises what a crew could not go on with."""
        if not self._threads:
            for batch in self._batches:
                thread = Thread(target=self._work, args=(batch,), name="ecokv-crew", daemon=True)
                self._threads.append(thread)
                thread.start()
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def _work(self, batch: Batch) -> None:
        try:
            while not self.feed.stopped:
                prepared = self.feed.take(batch.takes, wait=not batch.n_active)
                if prepared is not None:
                    outcome = batch.admit(prepared)
                    if outcome is not None:
                        self._results.put((prepared.request, outcome))
                elif batch.n_active:
                    for answer in batch.step():
                        self._results.put(answer)
        except Stopped:
            pass
        except BaseException as error:  # for the one who waits for answers
            self._results.put(error)

    def close(self) -> None:
        """Stop the crews and free everything; idempotent."""
        self.feed.stop()
        self._results.put(StateError("the engine was closed"))  # for one who still waits
        for batch in self._batches:
            batch.request_stop()
        for thread in self._threads:
            thread.join()
        for batch in self._batches:
            batch.close()
        self.feed.close()
