"""Budgets that differ between layers (``pyramid``) and between heads (``ada``)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ecokv_local.reference.measure import F32, I32
from ecokv_local.reference.steps import Config

I64 = npt.NDArray[np.int64]


def layer_budgets(budget: int, n_layers: int, n_tokens: int, config: Config) -> I64:
    """KV pairs per head of every layer, ``[L]``: the total is that of ``budget`` everywhere.

    Candidates fall linearly from 2k - k/beta to k/beta, k = budget - sinks - recents. The slope is
    flatter where the first layer has fewer candidates.
    """
    if n_tokens <= budget or not config.pyramid or n_layers == 1:
        return np.full(n_layers, min(budget, n_tokens))
    protected = config.n_sinks + config.n_recent
    k, n = budget - protected, n_tokens - protected
    last = k / float(np.float32(config.beta))
    first = 2 * k - last
    if first > n:
        first, last = float(n), 2.0 * k - n
    exact = [first - (first - last) * i / (n_layers - 1) for i in range(n_layers)]
    result = np.floor(exact).astype(np.int64)
    for i in range(n_layers * n_layers):  # the rest of the rounding, first layers first
        if result.sum() == k * n_layers:
            break
        result[i % n_layers] += result[i % n_layers] < n
    return np.asarray(result + protected)


def head_budgets(scores: F32, k: int, config: Config) -> I64:
    """Candidates that stay of every head, ``[H]``; scores ``[H, n]`` of candidates, -inf is out.

    The best ``k * H`` of the layer are counted by head (ties: the later position, then the lower
    head). Every head gets ``floor * k`` and (1 - floor) of its count.
    """
    n_heads, n = scores.shape
    if not config.ada:
        return np.full(n_heads, min(k, n))
    flat = [(-scores[h, i], n - i, h) for h in range(n_heads) for i in range(n)]
    floor = float(np.float32(config.floor))
    best = sorted(x for x in flat if x[0] < np.inf)[: k * n_heads]
    counts = np.bincount([h for _, _, h in best], minlength=n_heads)
    most = min(n, int(np.ceil(k * (floor + (1 - floor) * n_heads))))
    want = floor * k + (1 - floor) * counts
    result = np.minimum(want.astype(np.int64), most)
    order = np.argsort(-(want - result), kind="stable")
    while result.sum() < min(k, most) * n_heads:
        for h in order:
            if result.sum() < k * n_heads and result[h] < most:
                result[h] += 1
    return np.asarray(result)


def select_uneven(scores: F32, budget: int, config: Config) -> list[I32]:
    """Ranks of one layer that stay, per head, ascending.

    scores ``[H, T]`` as of ``selection.scores``; ``budget`` pairs per head on average.
    """
    n_tokens = scores.shape[1]
    if n_tokens <= budget:
        return [np.arange(n_tokens, dtype=np.int32) for _ in scores]
    protected = config.n_sinks + config.n_recent
    candidates = scores[:, config.n_sinks : n_tokens - config.n_recent]
    n_best = head_budgets(candidates, budget - protected, config)
    order = np.argsort(scores, axis=-1, kind="stable")  # by score, then by position
    return [
        np.sort(ranks[n_tokens - protected - n :]).astype(np.int32)
        for ranks, n in zip(order, n_best, strict=True)
    ]
