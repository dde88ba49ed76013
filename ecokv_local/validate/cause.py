"""Why native code and reference may differ, guessed from the pattern of the mismatches.

Where a guess can be tried, it is: the reference is run with the suspected mistake, and if that
gives the native values, the mistake is named as found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ecokv_local.validate.compare import (
    F32,
    F64,
    FEATURES,
    I32,
    TIE,
    Bool,
    Bytes,
    by_head,
    reference_array,
    relative_error,
    scale_of,
    score_error,
)

if TYPE_CHECKING:
    from ecokv_local.reference import Features
    from ecokv_local.validate.read import Layer

#: Runs the reference on the layer with some of its arguments changed.
Rerun = Callable[..., "Features"]

#: Scores are stored in f32: below this, in units of their mean, they differ by rounding.
_ARITHMETIC = 1e-5
_ATTENTION = {"attn", "attn_last"}
_OF_KEYS = {"key_norm", "key_cos", "key_euc", "head_m2"}


@dataclass(frozen=True)
class Mismatch:
    """Features of one layer that differ: ``bad`` marks them, ``[H, T]`` by name."""

    layer: Layer
    native: Mapping[str, F64]
    reference: Features
    bad: Mapping[str, Bool]
    tolerance: Mapping[str, float]
    rerun: Rerun

    @property
    def names(self) -> set[str]:
        """Features that differ anywhere."""
        return {name for name, bad in self.bad.items() if bad.any()}

    @property
    def heads(self) -> list[int]:
        """KV heads in which anything differs."""
        return [
            h for h in range(self.layer.n_head_kv) if any(b[h].any() for b in self.bad.values())
        ]

    @property
    def ranks(self) -> list[int]:
        """Rows in which anything differs; ``head_m2`` belongs to none."""
        rows = [bad.any(0) for name, bad in self.bad.items() if name != "head_m2"]
        return [int(r) for r in np.flatnonzero(np.any(rows, axis=0))]

    def explains(self, other: Features, names: set[str]) -> bool:
        """Whether the native values of ``names`` are those of ``other``."""
        return all(
            relative_error(
                self.native[name], reference_array(other, name), scale_of(self.reference, name)
            ).max(initial=0.0)
            <= self.tolerance[name]
            for name in names
        )


def of_features(m: Mismatch) -> str:
    """The likely cause of features that differ."""
    for guess in (_not_finite, _head_order, _one_row):
        found = guess(m)
        if found:
            return found
    names = m.names
    if {"key_norm", "value_norm"} <= names:
        where = f"head {m.heads[0]}" if len(m.heads) == 1 else "several heads"
        return f"all rows of {where} differ, K and V alike: stride or head order of the rows"
    if "key_norm" in names:
        return "rows of K: dequantisation, or the stride between rows"
    if "value_norm" in names:
        return "rows of V: dequantisation, or its transposition without flash attention"
    if names <= _ATTENTION:
        return _of_attention(m)
    if names <= _OF_KEYS:
        return _of_geometry(m)
    return "keys and attention differ while the rows agree: candidates or queries of another layer"


def _not_finite(m: Mismatch) -> str:
    native = np.isfinite(m.native["key_norm"])
    finite = m.reference.finite
    if (native != finite).any():
        h, r = (int(i) for i in np.argwhere(native != finite)[0])
        return f"row {r} of head {h}: only one of the two sees NaN or Inf in it"
    broken = np.flatnonzero(~finite.all(-1)).tolist()
    if broken and set(m.heads) <= set(broken):
        first = int(np.flatnonzero(~finite[m.heads[0]])[0])
        return (
            f"only heads with NaN or Inf differ (head {m.heads[0]}: row {first}): "
            "such a row takes part in a mean or in the softmax"
        )
    return ""


def _head_order(m: Mismatch) -> str:
    """Whether a head holds what another one should."""
    for h in m.heads:
        names = [n for n, bad in m.bad.items() if bad[h].any()]
        for other in range(m.layer.n_head_kv):
            if other != h and all(_same_head(m, name, h, other) for name in names):
                what = "all features" if set(names) >= set(FEATURES) else ", ".join(names)
                return f"head order: head {h} holds the values of head {other} ({what})"
    return ""


def _same_head(m: Mismatch, name: str, h: int, other: int) -> bool:
    error = relative_error(
        m.native[name][h],
        reference_array(m.reference, name)[other],
        scale_of(m.reference, name)[other],
    )
    return bool(error.max(initial=0.0) <= m.tolerance[name])


def _one_row(m: Mismatch) -> str:
    rows = {(int(h), int(r)) for n, b in m.bad.items() if n != "head_m2" for h, r in np.argwhere(b)}
    if len(rows) == 1 and "head_m2" not in m.names:
        h, r = rows.pop()
        return (
            f"one row only (row {r} of head {h}: {', '.join(sorted(m.names))}): overwritten memory"
        )
    return ""


def _of_attention(m: Mismatch) -> str:
    if m.names == {"attn_last"}:
        return "the last query: its rank, or the mean over its group"
    if not m.layer.queries_are_last:
        return (
            "window queries: the ring holds those of positions "
            f"{m.layer.query_positions.tolist()}, which are not the last rows"
        )
    for text, change in _suspects(m):
        if m.explains(m.rerun(**change), m.names):
            return f"{text} (tried: the reference then gives the native values)"
    if len(m.heads) < m.layer.n_head_kv:
        return (
            f"attention of head {m.heads[0]} alone: query heads of the group (GQA order), "
            "or its attention sinks"
        )
    return "attention alone: scale, soft cap, attention sinks or window queries"


def _suspects(m: Mismatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """Mistakes of the attention that can be tried: what to say, and what to run with."""
    layer = m.layer
    usual = layer.d_k**-0.5
    for scale in (usual, 1.0, usual**2, 2 * layer.scale, layer.scale / 2):
        if abs(scale - layer.scale) > 1e-6 * layer.scale:
            text = f"native code scores with {scale:.6g}, the layer says {layer.scale:.6g}"
            yield f"wrong scale: {text}", {"scale": scale}
    if layer.soft_cap:
        yield f"the soft cap of {layer.soft_cap:g} is left out by native code", {"soft_cap": 0.0}
    if layer.sinks is not None:
        yield "the attention sinks of the model are left out by native code", {"attn_sinks": None}
    ranks, n = layer.query_ranks, layer.n_rows
    for step in (-1, 1):
        moved = ranks + step
        if moved.min() >= 0 and moved.max() < n:
            yield f"window queries: their ranks are off by {step}", {"query_ranks": moved}
    if n > len(ranks):
        everything = np.full_like(ranks, n - 1)
        yield "window queries: they see rows after their own", {"query_ranks": everything}


def _of_geometry(m: Mismatch) -> str:
    for text, change in (
        ("sinks and recents too", {"sinks": 0, "recent": 0}),
        ("recents too", {"recent": 0}),
        ("sinks too", {"sinks": 0}),
    ):
        if m.explains(m.rerun(**change), m.names):
            return (
                f"centroids: native code takes them over {text} "
                "(tried: the reference then gives the native values)"
            )
    if "key_euc" not in m.names:
        return "normalisation of the keys: u_i or its mean m (key_norm and key_euc agree)"
    if m.names == {"key_euc"}:
        return "centroid or distance of the keys: a square that was expanded, or a mean in f32"
    return "centroids of the keys: another range of candidates, or a mean in f32"


# ---- kept sets -----------------------------------------------------------------------------------


def of_kept(policy: str, native: F32, reference: F32, kept: I32, budget: int, head: int) -> str:
    """Why sets differ given the same features: scores ``[H, T]`` of both, native kept ranks."""
    error = score_error(native, reference)
    if error > _ARITHMETIC:
        return f"arithmetic of policy {policy}: its scores differ by {error:.3g} of their mean"
    scores = native[head]
    n = len(scores)
    by_rule = np.lexsort((np.arange(n), scores))[n - budget :]
    earlier = np.lexsort((-np.arange(n), scores))[n - budget :]
    mine = np.sort(kept[head])
    if np.array_equal(np.sort(by_rule), mine):
        return f"rounding: scores of native code and reference differ by {error:.3g} at the cut"
    if np.array_equal(np.sort(earlier), mine):
        return "selection: native code lets ties go to the earlier position"
    if len(np.unique(mine)) < len(mine):
        return "selection: native code keeps a row twice"
    return "selection: the native set is not the top of its own scores"


def of_end_to_end(features_agree: bool, same_features_agree: bool, gap: float) -> str:
    """Why sets differ end to end."""
    if not features_agree:
        return "follows from the features of this layer, which differ"
    if not same_features_agree:
        return "follows from the kept sets, which differ given the same features too"
    return (
        f"rounding: features agree within their tolerance, and so do the sets given the same "
        f"features; the score is {gap:.3g} of the mean score from the cut (a tie is {TIE:g})"
    )


# ---- moved rows ----------------------------------------------------------------------------------


def of_rows(before: Bytes, after: Bytes, expected: Bytes, keep: I32, head: int, at: int) -> str:
    """Why row ``at`` of a head is not the one it should be.

    before ``[T, H * bytes]``, after and expected ``[k, H, bytes]``, keep ``[H, k]``.
    """
    row, source = after[at, head], int(keep[head, at])
    split = by_head(before, keep.shape[0])
    same = np.flatnonzero((split[:, head] == row).all(-1))
    if len(same):
        return f"apply: the row of rank {int(same[0])} was moved in place of that of rank {source}"
    for other in range(keep.shape[0]):
        if other != head and (split[source, other] == row).all():
            return f"apply: head {head} holds the row of head {other} (stride or head order)"
    bits = int(np.unpackbits(row ^ expected[at, head]).sum())
    others = int((after != expected).any(-1).sum())
    if bits <= 2 and others == 1:
        return f"apply: {bits} bit of one row differs: memory was overwritten after the move"
    return (
        f"apply: {bits} of {row.size * 8} bits of this row differ, and {others} rows of the layer: "
        "written over before it was read, or changed on the way (rows are never quantised again)"
    )


def of_positions(native: int, expected: int, rows_agree: bool) -> str:
    """Why a kept token has another position."""
    if rows_agree:
        return f"apply: the rows are right, the position {native} booked for one is not {expected}"
    return "follows from the moved rows, which differ"
