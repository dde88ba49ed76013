"""Named invariants of the cache; a failure says which one broke, where, and the usual cause."""

from __future__ import annotations

import numpy as np

from ecokv_local.context import Context


def random_tokens(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    """Any tokens do: equality must hold for all."""
    return [int(t) for t in np.random.default_rng(seed).integers(n_vocab // 10, n_vocab - 10, n)]


def decode_all(context: Context, tokens: list[int]) -> np.ndarray:
    """Read tokens batch by batch; logits of the last, ``[n_vocab]``."""
    step = context.n_batch
    for start in range(0, len(tokens), step):
        context.decode(tokens[start : start + step])
    return context.logits()


def assert_same_logits(ours: np.ndarray, stock: np.ndarray, invariant: str) -> None:
    """Bit for bit, ``[n_steps, n_vocab]``."""
    assert ours.shape == stock.shape, f"{invariant}: {ours.shape} against {stock.shape}"
    for step, (a, b) in enumerate(zip(ours, stock, strict=True)):
        if not np.array_equal(a, b):
            raise AssertionError(
                f"{invariant}: step {step} differs by {np.abs(a - b).max():.3g} "
                f"(argmax {a.argmax()} against {b.argmax()}). Usual causes: another cell layout, "
                "a ggml built with other flags, or a node added to the graph without a budget."
            )


def assert_rows_within(context: Context, budget: int, n_ubatch: int) -> None:
    """Cells in use never exceed the budget plus one micro-batch."""
    assert context.n_rows <= budget + n_ubatch, (
        f"{context.n_rows} rows for a budget of {budget} and micro-batches of {n_ubatch}: "
        "was an eviction skipped?"
    )
