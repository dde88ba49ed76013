"""CriticalKV: half of what is chosen by attention, the rest by attention times the norm of the
value (arXiv:2502.03805).
"""

from __future__ import annotations

import numpy as np

from ecokv_local.reference.measure import F64
from ecokv_local.reference.steps import Config, Head, pool


def score(head: Head, config: Config) -> F64:
    """``[n]``: one score for both selections; the first half lies above everything else."""
    a = pool(head.attn, config)
    out = (a + 1e-4) * head.value_norm
    top = max(0.0, float(out.max())) if head.n else 0.0
    order = np.argsort(np.where(head.ok, a, -np.inf), kind="stable")  # ties: the later position
    first = order[max(0, head.n - head.k // 2) :]
    out[first] = 2 * (1 + top) + a[first]
    return out
