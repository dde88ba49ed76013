"""The definition of ECOKV and its sibling policies, in numpy and numba.

Short enough to be read in one sitting; the native code is tested for equality with it. Needs no
llama.cpp. Arrays: keys and values ``[n_kv_heads, T, d]``, window queries ``[n_q_heads, W, d]``,
f32.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Features", "evict", "features", "scores", "select"]


def __getattr__(name: str) -> Any:
    # numba is imported with the first use, not with the package
    if name in __all__:
        from ecokv_local.reference import definition

        return getattr(definition, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
