"""Scores, selection and compaction: steps 0 and 7 of ``docs/method.md``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ecokv_local.reference.measure import F32, I32, Features, features
from ecokv_local.reference.policies import score_of
from ecokv_local.reference.steps import Config, head_of


def scores(
    policy: str, features: Features, config: Config, *, layer: int = 0, budget: int | None = None
) -> F32:
    """Step 7: ``[H, T]``, higher stays; +inf for sinks and recents, -inf for tokens with NaN or
    Inf.

    ``budget`` is asked for by policies that select in two stages (``critical``); left out, all
    tokens may stay.
    """
    n_heads, n_tokens = features.attn.shape
    out = np.full((n_heads, n_tokens), np.inf, np.float32)
    if policy == "none":
        return out
    k = (n_tokens if budget is None else budget) - config.n_sinks - config.n_recent
    for h in range(n_heads):
        head = head_of(features, h, layer, max(0, k))
        score = score_of(policy)(head, config)
        out[h, features.lo : features.hi] = np.where(head.ok, score, -np.inf)
    return out


def select(scores: F32, budget: int, config: Config) -> I32:
    """Ranks that stay, ``[H, min(T, budget)]``, ascending.

    Ties go to the later position. Raises ValueError for a budget below sinks + recents + 1.
    """
    n_heads, n_tokens = scores.shape
    if config.policy == "none" or n_tokens <= budget:
        return np.tile(np.arange(n_tokens, dtype=np.int32), (n_heads, 1))
    smallest = config.n_sinks + config.n_recent + 1
    if budget < smallest:
        raise ValueError(f"a budget of {budget} is below {smallest}, the smallest that works")
    order = np.argsort(scores, axis=-1, kind="stable")  # by score, then by position
    return np.sort(order[:, n_tokens - budget :], axis=-1).astype(np.int32)


def compact(x: npt.NDArray[np.generic], kept: I32) -> npt.NDArray[np.generic]:
    """Rows that stay: x ``[H, T, d]``, kept ``[H, n]`` -> ``[H, n, d]``; copied, never changed."""
    return np.take_along_axis(x, kept[:, :, None].astype(np.int64), axis=1)


def evict(
    policy: str,
    k: F32,
    v: F32,
    q: F32,
    budget: int,
    config: Config,
    *,
    layer: int = 0,
    scale: float | None = None,
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic], I32]:
    """All steps on one layer: the kept keys, values and their ranks.

    Raises ValueError if a sink or recent token holds NaN or Inf, or the budget is too small.
    """
    f = features(k, v, q, sinks=config.n_sinks, recent=config.n_recent, scale=scale, gqa=config.gqa)
    protected = np.ones(k.shape[1], bool)
    protected[f.lo : f.hi] = False
    if policy != "none" and k.shape[1] > budget and not f.finite[:, protected].all():
        raise ValueError("a protected token (sink or recent) holds NaN or Inf")
    kept = select(scores(policy, f, config, layer=layer, budget=budget), budget, config)
    return compact(k, kept), compact(v, kept), kept
