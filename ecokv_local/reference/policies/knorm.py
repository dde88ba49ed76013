"""Keys of small norm draw attention: the smallest stay (arXiv:2406.11430)."""

from __future__ import annotations

from ecokv_local.reference.measure import F64
from ecokv_local.reference.steps import Config, Head


def score(head: Head, config: Config) -> F64:
    """``[n]``"""
    return -head.key_norm
