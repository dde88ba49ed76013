"""ECOKV: importance and diversity, weighed by the redundancy of the head.

An implementation of a published abstract; the composition of the two distances and the Euclidean
redundancy are our reading of it.
"""

from __future__ import annotations

import numpy as np

from ecokv_local.reference.measure import F64
from ecokv_local.reference.steps import Config, Head, mean, over_mean, pool, redundancy_cos, scaled


def importance(x: F64, head: Head, config: Config) -> F64:
    """Step 2, with the option ``value_norm``; ``x`` is the attention, or the score of a host."""
    if config.value_norm == "mul":
        x = x * head.value_norm
    x = over_mean(x, head.ok)
    if config.value_norm == "add":
        share, _ = scaled(head.value_norm, head.ok, 0.0)
        x = (x + over_mean(share, head.ok)) / 2
    return x


def diversity(e: F64, e_ok: bool, c: F64, c_ok: bool, config: Config) -> F64:
    """Step 5: far from the centroid or in another direction; one metric alone where the other is
    mute.
    """
    if not (e_ok and c_ok):
        return e if e_ok else c
    lam = config.lam
    if config.compose == "sum":
        return lam * e + (1 - lam) * c
    if config.compose == "max":
        return np.maximum(e, c)
    if config.compose == "prod":
        return e ** (2 * lam) * c ** (2 * (1 - lam))
    return 1 - (1 - e) ** (2 * lam) * (1 - c) ** (2 * (1 - lam))


def head_weight(e: F64, e_ok: bool, c_ok: bool, head: Head, config: Config) -> float:
    """Step 6: how redundant the head is."""
    if not isinstance(config.head_weight, str):
        return float(config.head_weight)
    if not (e_ok or c_ok):
        return 0.0
    r_cos = redundancy_cos(head.m2, head.ok)
    r_euc = 1 - mean(e, head.ok)
    weight = {"cos": r_cos, "euclid": r_euc, "both": 0.5 * r_cos + 0.5 * r_euc}
    return float(np.clip(weight[config.head_weight], 0, 1))


def score_with(x: F64, head: Head, config: Config) -> F64:
    """Steps 2 and 4 to 7 with an importance ``x`` [n] of one's choice."""
    rms = float(np.sqrt(mean(head.key_norm**2, head.ok)))
    c, c_ok = scaled(head.key_cos, head.ok, 1e-6)
    e, e_ok = scaled(head.key_euc, head.ok, 1e-3 * rms)
    different = over_mean(diversity(e, e_ok, c, c_ok, config), head.ok)
    weight = head_weight(e, e_ok, c_ok, head, config)
    return weight * different + (1 - weight) * importance(x, head, config)


def score(head: Head, config: Config) -> F64:
    """Steps 1, 2 and 4 to 7: ``[n]``."""
    return score_with(pool(head.attn, config), head, config)
