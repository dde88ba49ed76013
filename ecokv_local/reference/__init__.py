"""The definition of ECOKV and its sibling policies, in numpy and numba.

Short enough to be read in one sitting: ``measure.py`` (steps 1 and 3: the features), ``steps.py``
(what policies share), ``policies/`` (one file each), ``selection.py`` (steps 0 and 7). The native
code is tested for equality with it. Needs no llama.cpp. Arrays: keys and values
``[n_kv_heads, T, d]``, window queries ``[n_q_heads, W, d]``, f32.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Features", "compact", "evict", "features", "scores", "select"]


def __getattr__(name: str) -> Any:
    # numba is imported with the first use, not with the package
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ecokv_local.reference import selection

    return getattr(selection, name)
