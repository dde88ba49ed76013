"""Seeded noise per layer, KV head and rank: the control."""

from __future__ import annotations

from typing import Any

import numpy as np

from ecokv_local.reference.jit import njit
from ecokv_local.reference.measure import F64
from ecokv_local.reference.steps import Config, Head


@njit
def _mix(x: Any) -> Any:
    """splitmix64."""
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit
def _noise(seed: int, layer: int, head: int, lo: int, hi: int) -> F64:
    state = _mix(_mix(_mix(np.uint64(seed)) + np.uint64(layer)) + np.uint64(head))
    out = np.empty(hi - lo)
    for t in range(lo, hi):
        out[t - lo] = np.float64(_mix(state + np.uint64(t)) >> np.uint64(40)) * 2.0**-24
    return out


def score(head: Head, config: Config) -> F64:
    """``[n]``"""
    return _noise(config.seed, head.layer, head.head, head.first, head.first + head.n)
