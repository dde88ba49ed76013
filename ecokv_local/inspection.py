"""What is in the cache, as arrays: for validation, explanations and tests."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ecokv_local import native
from ecokv_local.config import GQA, EvictionConfig
from ecokv_local.context import Context, native_config
from ecokv_local.groups import Group, groups_of

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

FEATURES = ("attn", "attn_last", "key_norm", "key_cos", "key_euc", "value_norm")


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(kind)


def shape(context: Context) -> native.Shape:
    """Sizes of the evictable part of the cache."""
    result = native.Shape()
    native.check(native.lib.llama_ecokv_get_shape(context.ptr, c.byref(result)))
    return result


def features(context: Context, *, sinks: int, recent: int, gqa: str = "mean") -> dict[str, Any]:
    """Native features: each of ``FEATURES`` as ``[n_layer, n_kv_heads, n_rows]``, ``head_m2``
    ``[n_layer, n_kv_heads]``, ``head_first`` ``[n_layer, n_kv_heads]``, the first row that a head
    has, and ``layer_n_head_kv`` ``[n_layer]``, the heads a layer really has.
    """
    sizes = shape(context)
    heads = (sizes.n_layer, sizes.n_head_kv)
    arrays = {name: np.zeros((*heads, context.n_rows), np.float32) for name in FEATURES}
    arrays["head_m2"] = np.zeros(heads, np.float32)
    arrays["head_first"] = np.zeros(heads, np.int32)
    native.check(
        native.lib.llama_ecokv_features_get(
            context.ptr, context.seq, c.byref(_struct(arrays, sinks, recent, gqa))
        )
    )
    heads_of = [layer_info(context, layer)[0].n_head_kv for layer in range(sizes.n_layer)]
    return {**arrays, "layer_n_head_kv": np.array(heads_of, np.int32)}


def _struct(arrays: dict[str, Any], sinks: int, recent: int, gqa: str) -> native.Features:
    n_layer, n_head_kv, n = arrays["attn"].shape
    pointers: dict[str, Any] = {
        name: _pointer(array, native.IntP if array.dtype == np.int32 else native.FloatP)
        for name, array in arrays.items()
    }
    return native.Features(
        n_layer=n_layer,
        n_head_kv=n_head_kv,
        n=n,
        n_sink=sinks,
        n_recent=recent,
        gqa=GQA.index(gqa),
        **pointers,
    )


def plan(
    arrays: dict[str, Any], config: EvictionConfig, pairs: int, groups: Sequence[Group] = ()
) -> I32:
    """Ranks that stay, ``[n_layer, n_kv_heads, n_keep]``, -1 before those of heads that keep fewer;
    pure. ``groups`` need ``pos`` in the arrays: true positions, as ``kept`` gives them."""
    struct = _struct(arrays, config.n_sinks, config.n_recent, config.gqa)
    settings = native_config(config, pairs, groups)
    heads = (struct.n_layer, struct.n_head_kv)
    most = native.check(native.lib.llama_ecokv_plan_max(c.byref(settings), *heads, struct.n))
    keep = np.zeros(heads[0] * heads[1] * most, np.int32)
    n_keep = native.check(
        native.lib.llama_ecokv_plan(c.byref(struct), c.byref(settings), _pointer(keep, native.IntP))
    )
    return keep[: heads[0] * heads[1] * n_keep].reshape(*heads, n_keep)


def layer_budgets(config: EvictionConfig, pairs: int, n_layer: int, n_rows: int) -> I32:
    """KV pairs per head (on average) of every layer, ``[n_layer]``; pure."""
    settings = native_config(config, pairs)
    result = np.zeros(n_layer, np.int32)
    native.check(
        native.lib.llama_ecokv_layer_budgets(
            c.byref(settings), n_layer, n_rows, _pointer(result, native.IntP)
        )
    )
    return result


def scores(arrays: dict[str, Any], config: EvictionConfig, pairs: int, layer: int) -> F32:
    """Native scores of one layer, ``[n_kv_heads, n_rows]``."""
    struct = _struct(arrays, config.n_sinks, config.n_recent, config.gqa)
    result = np.zeros((struct.n_head_kv, struct.n), np.float32)
    settings = native_config(config, pairs)
    for head in range(struct.n_head_kv):
        native.check(
            native.lib.llama_ecokv_scores(
                c.byref(struct),
                c.byref(settings),
                layer,
                head,
                _pointer(result[head], native.FloatP),
            )
        )
    return result


def choose(context: Context, config: EvictionConfig, pairs: int) -> I32:
    """Ranks that an eviction to ``pairs`` would keep, ``[n_layer, n_kv_heads, n_keep]``, -1 before
    those of heads that keep fewer; changes nothing."""
    sizes = shape(context)
    heads = (sizes.n_layer, sizes.n_head_kv)
    keep = np.zeros(heads[0] * heads[1] * context.n_rows, np.int32)
    settings = native_config(config, pairs, groups_of(config, context.spans))
    n_keep = native.check(
        native.lib.llama_ecokv_choose(
            context.ptr, context.seq, c.byref(settings), _pointer(keep, native.IntP), None
        )
    )
    return keep[: heads[0] * heads[1] * n_keep].reshape(*heads, n_keep)


def apply(context: Context, keep: I32) -> None:
    """Evict all but ``keep`` ``[n_layer, n_kv_heads, n_keep]``: ranks ascending, -1 first."""
    keep = np.ascontiguousarray(keep, np.int32)
    native.check(
        native.lib.llama_ecokv_apply(
            context.ptr, context.seq, _pointer(keep, native.IntP), keep.shape[-1]
        )
    )


def rows(context: Context, layer: int, *, value: bool) -> npt.NDArray[np.uint8]:
    """Raw bytes of K (or V) of one layer in rank order, ``[n_rows, row_bytes]``."""
    size = native.check(native.lib.llama_ecokv_row_bytes(context.ptr, layer, value))
    result = np.zeros((context.n_rows, size), np.uint8)
    native.check(
        native.lib.llama_ecokv_get_rows(context.ptr, context.seq, layer, value, result.ctypes.data)
    )
    return result


def layer_info(context: Context, layer: int) -> tuple[native.LayerInfo, F32]:
    """Sizes of an evictable layer, its logit scale and soft cap (0: none), and the attention sinks
    of the model ``[n_heads]``, empty where it has none.
    """
    info = native.LayerInfo()
    get_layer = native.lib.llama_ecokv_get_layer
    native.check(get_layer(context.ptr, layer, c.byref(info), None))
    sinks = np.zeros(info.n_head if info.has_sinks else 0, np.float32)
    if info.has_sinks:
        native.check(get_layer(context.ptr, layer, c.byref(info), _pointer(sinks, native.FloatP)))
    return info, sinks


def queries(context: Context, layer: int) -> tuple[F32, I32]:
    """Window queries of one layer, oldest first, ``[n_heads, n_query, d]``, and their positions."""
    n = native.check(native.lib.llama_ecokv_n_query(context.ptr, context.seq))
    info, _ = layer_info(context, layer)
    positions = np.zeros(n, np.int32)
    result = np.zeros((n, info.n_head, info.d_k), np.float32)
    native.check(
        native.lib.llama_ecokv_get_queries(
            context.ptr,
            context.seq,
            layer,
            _pointer(result, native.FloatP),
            _pointer(positions, native.IntP),
        )
    )
    return np.ascontiguousarray(result.transpose(1, 0, 2)), positions


def positions(context: Context) -> I32:
    """Nominal position of every row, ``[n_rows]``: what llama.cpp sees."""
    result = np.zeros(context.n_rows, np.int32)
    native.check(
        native.lib.llama_ecokv_get_pos(context.ptr, context.seq, _pointer(result, native.IntP))
    )
    return result


def kept(context: Context) -> I32:
    """True position of every row, ``[n_layer, n_kv_heads, n_rows]``; -1 where a head has none."""
    sizes = shape(context)
    result = np.zeros((sizes.n_layer, sizes.n_head_kv, context.n_rows), np.int32)
    native.check(
        native.lib.llama_ecokv_get_kept(context.ptr, context.seq, _pointer(result, native.IntP))
    )
    return result
