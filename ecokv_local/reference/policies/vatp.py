"""VATP: attention times the norm of the value (arXiv:2406.12335), pooled as in SnapKV."""

from __future__ import annotations

from ecokv_local.reference.measure import F64
from ecokv_local.reference.steps import Config, Head, pool


def score(head: Head, config: Config) -> F64:
    """``[n]``"""
    return pool(head.attn, config) * head.value_norm
