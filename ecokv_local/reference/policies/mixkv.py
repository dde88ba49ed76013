"""MixKV: attention and value norm against the direction of the key, mixed by the redundancy of the
head (arXiv:2510.20707).
"""

from __future__ import annotations

import numpy as np

from ecokv_local.reference.measure import F64, Bool
from ecokv_local.reference.steps import Config, Head, mean, over_mean, pool, redundancy_cos


def _scaled_to(x: F64, ok: Bool, target: float) -> F64:
    """x scaled to [0, 1] over the candidates, then to a mean of ``target``."""
    lo, hi = (x[ok].min(), x[ok].max()) if ok.any() else (0.0, 0.0)
    x = (x - lo) / (hi - lo) if hi > lo else np.zeros(len(x))
    return over_mean(x, ok) * target


def score(head: Head, config: Config) -> F64:
    """``[n]``"""
    a = pool(head.attn, config)
    level = mean(a, head.ok)
    r = redundancy_cos(head.m2, head.ok)
    important = a + _scaled_to(head.value_norm, head.ok, level)
    return (1 - r) * important + r * _scaled_to(head.key_cos, head.ok, level)
