"""Features of the reference from the raw rows of a cache and the queries of its ring."""

from __future__ import annotations

import gguf
import numpy as np

from ecokv_local import inspection
from ecokv_local.context import Context
from ecokv_local.reference import features
from ecokv_local.reference.measure import Features


def dequantised(context: Context, layer: int, *, value: bool) -> np.ndarray:
    """Rows of a layer as ``[n_heads, n, d]`` f32."""
    info, _ = inspection.layer_info(context, layer)
    kind = gguf.GGMLQuantizationType(info.type_v if value else info.type_k)
    rows = gguf.quants.dequantize(inspection.rows(context, layer, value=value), kind)
    flat = np.asarray(rows, np.float32).reshape(context.n_rows, info.n_head_kv, -1)
    return np.ascontiguousarray(flat.transpose(1, 0, 2))


def reference_features(
    context: Context, layer: int, sinks: int, recent: int, gqa: str = "mean"
) -> Features:
    info, attn_sinks = inspection.layer_info(context, layer)
    q, positions = inspection.queries(context, layer)
    return features(
        dequantised(context, layer, value=False),
        dequantised(context, layer, value=True),
        q,
        sinks=sinks,
        recent=recent,
        query_ranks=positions,
        scale=info.kq_scale,
        soft_cap=info.soft_cap,
        gqa=gqa,
        attn_sinks=attn_sinks if info.has_sinks else None,
    )
