"""Stored rows of K and V as f32, by the package gguf: independent of the code that is validated."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ecokv_local.cache_types import QUANTISED, TYPES
from ecokv_local.errors import UsageError

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

_NAMES = {number: name for name, number in TYPES.items()}


def type_name(number: int) -> str:
    """Name of a ``ggml_type`` that a cache can have. Raises UsageError for any other."""
    if number not in _NAMES:
        raise UsageError(f"cache type {number} is not one that can be read")
    return _NAMES[number]


def is_quantised(name: str) -> bool:
    """Whether the type stores blocks with a common scale."""
    return name in QUANTISED


def dequantise(rows: Bytes, name: str) -> F32:
    """Raw rows ``[n, bytes]`` of a cache type as ``[n, values]`` f32."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(TYPES[name])
    return np.asarray(dequantize(np.ascontiguousarray(rows), kind), np.float32)
