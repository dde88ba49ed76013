"""TOVA: the attention of the last query, one set for all heads of a layer (arXiv:2401.06104)."""

from __future__ import annotations

import numpy as np

from ecokv_local.reference.measure import F64
from ecokv_local.reference.steps import Config, Head


def score(head: Head, config: Config) -> F64:
    """``[n]``, the same for all heads"""
    return np.asarray(head.layer_last.mean(axis=0))
