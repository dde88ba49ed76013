"""StreamingLLM: sinks and the most recent tokens (arXiv:2309.17453)."""

from __future__ import annotations

import numpy as np

from ecokv_local.reference.measure import F64
from ecokv_local.reference.steps import Config, Head


def score(head: Head, config: Config) -> F64:
    """``[n]``"""
    return np.arange(head.n, dtype=np.float64)
