"""SnapKV: the pooled attention of the window (arXiv:2404.14469)."""

from __future__ import annotations

from ecokv_local.reference.measure import F64
from ecokv_local.reference.steps import Config, Head, pool


def score(head: Head, config: Config) -> F64:
    """``[n]``"""
    return pool(head.attn, config)
