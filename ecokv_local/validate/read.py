"""What a filled cache holds, layer by layer, as arrays for the reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ecokv_local import inspection
from ecokv_local.context import Context
from ecokv_local.validate.compare import F32, I32, Bytes, by_head
from ecokv_local.validate.dequantise import dequantise, type_name


@dataclass(frozen=True)
class Layer:
    """One evictable layer: raw rows ``[T, bytes]``, window queries ``[n_head, W, d_k]``.

    ``layer`` is its number in the model, ``query_ranks`` [W] are the rows that asked,
    ``query_positions`` what the ring says of them.
    """

    layer: int
    n_head: int
    n_head_kv: int
    d_k: int
    type_k: str
    type_v: str
    scale: float
    soft_cap: float
    sinks: F32 | None
    raw_k: Bytes
    raw_v: Bytes
    queries: F32
    query_ranks: I32
    query_positions: I32
    queries_are_last: bool

    @property
    def n_rows(self) -> int:
        """Rows of the cache."""
        return len(self.raw_k)

    def keys(self) -> F32:
        """Dequantised, ``[H, T, d_k]``."""
        return _heads(self.raw_k, self.type_k, self.n_head_kv)

    def values(self) -> F32:
        """Dequantised, ``[H, T, d_v]``."""
        return _heads(self.raw_v, self.type_v, self.n_head_kv)


def _heads(raw: Bytes, name: str, n_heads: int) -> F32:
    split = by_head(np.asarray(dequantise(raw, name)), n_heads)
    return np.ascontiguousarray(split.transpose(1, 0, 2), np.float32)


def read_layer(context: Context, index: int, positions: I32) -> Layer:
    """The ``index``-th evictable layer; ``positions`` [T] are those of the rows.

    The queries are taken to be those of the last rows, in a whole prefill they are; the positions
    in the ring are compared with those of the rows.
    """
    info, sinks = inspection.layer_info(context, index)
    queries, query_positions = inspection.queries(context, index)
    n = len(positions)
    ranks = np.arange(n - len(query_positions), n, dtype=np.int32)
    return Layer(
        layer=info.il,
        n_head=info.n_head,
        n_head_kv=info.n_head_kv,
        d_k=info.d_k,
        type_k=type_name(info.type_k),
        type_v=type_name(info.type_v),
        scale=float(info.kq_scale),
        soft_cap=float(info.soft_cap),
        sinks=sinks if len(sinks) else None,
        raw_k=inspection.rows(context, index, value=False),
        raw_v=inspection.rows(context, index, value=True),
        queries=queries,
        query_ranks=ranks,
        query_positions=query_positions,
        queries_are_last=bool(np.array_equal(positions[ranks], query_positions)),
    )
