"""Stored rows of K and V as f32, in numpy: independent of the code that is being validated.

The layouts are those of ggml: blocks of 32 values, a scale in f16 and, depending on the type, an
offset in f16, the fifth bits of all values, and the low four bits (values 0-15 in the low halves of
the bytes, 16-31 in the high ones).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ecokv_local.cache_types import TYPES
from ecokv_local.errors import UsageError

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

BLOCK = 32
_IQ4_NL = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
_NAMES = {number: name for name, number in TYPES.items()}
_BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "iq4_nl": 18}


def type_name(number: int) -> str:
    """Name of a ``ggml_type`` that a cache can have. Raises UsageError for any other."""
    if number not in _NAMES:
        raise UsageError(f"cache type {number} is not one that can be read")
    return _NAMES[number]


def is_quantised(name: str) -> bool:
    """Whether the type stores blocks with a common scale."""
    return name in _BLOCK_BYTES


def dequantise(rows: Bytes, name: str) -> F32:
    """Raw rows ``[n, bytes]`` of a cache type as ``[n, values]`` f32."""
    rows = np.ascontiguousarray(rows)
    if name == "f32":
        return rows.view(np.float32)
    if name == "f16":
        return rows.view(np.float16).astype(np.float32)
    if name == "bf16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    blocks = rows.reshape(-1, _BLOCK_BYTES[name])
    scale = _f16(blocks, 0)
    if name == "q8_0":
        values = blocks[:, 2:].view(np.int8).astype(np.float32) * scale
    elif name == "iq4_nl":
        values = _IQ4_NL[_nibbles(blocks[:, 2:])] * scale
    elif name == "q4_0":
        values = (_nibbles(blocks[:, 2:]).astype(np.float32) - 8) * scale
    elif name == "q4_1":
        values = _nibbles(blocks[:, 4:]).astype(np.float32) * scale + _f16(blocks, 2)
    elif name == "q5_0":
        five = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
        values = (five.astype(np.float32) - 16) * scale
    else:
        five = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
        values = five.astype(np.float32) * scale + _f16(blocks, 2)
    return np.asarray(values, np.float32).reshape(len(rows), -1)


def _f16(blocks: Bytes, at: int) -> F32:
    """A half float of every block, ``[n_blocks, 1]``."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    return np.asarray(np.unpackbits(packed, axis=1, bitorder="little") << 4, np.uint8)
