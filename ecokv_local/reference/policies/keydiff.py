"""KeyDiff: the direction of the key, away from the mean direction (arXiv:2504.15364)."""

from __future__ import annotations

from ecokv_local.reference.measure import F64
from ecokv_local.reference.steps import Config, Head


def score(head: Head, config: Config) -> F64:
    """``[n]``"""
    return head.key_cos
