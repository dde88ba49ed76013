"""What policies need to know of every token: steps 1 and 3 of ``docs/method.md``.

For one layer. Keys are as stored (after RoPE), queries are those of the last ``W`` tokens. Sums of
many terms are taken in f64. ``T`` tokens, ``H`` KV heads, ``g`` query heads per KV head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ecokv_local.reference.jit import njit

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Features:
    """What policies need to know of every token: all ``[H, T]``, ``m2`` is ``[H]``.

    Candidates are ``[lo, hi)``: everything between sinks and recents. Tokens whose key or value
    holds NaN or Inf are not ``finite`` and take part in no mean.
    """

    lo: int
    hi: int
    finite: Bool
    attn: F64
    attn_last: F64
    key_norm: F64
    key_cos: F64
    key_euc: F64
    value_norm: F64
    m2: F64


def _attention(
    k: F32,
    q: F32,
    ranks: I32,
    finite: Bool,
    scale: float,
    soft_cap: float,
    sinks: F32,
    over_group: Callable[..., F64],
) -> tuple[F64, F64]:
    """Step 1 before pooling: mean attention of the queries that see a token, mean (or
    maximum) over the group; and that of the last query alone.
    """
    n_heads, n_tokens, _ = k.shape
    group = q.shape[0] // n_heads
    visible = np.arange(n_tokens) <= ranks[:, None]  # [W, T]
    seen = visible.sum(axis=0)
    total = np.zeros((n_heads, n_tokens))
    last = np.zeros((n_heads, n_tokens))
    for h in range(n_heads):
        keys = np.where(finite[h, :, None], k[h], 0).astype(np.float64)
        x = q[h * group : (h + 1) * group].astype(np.float64) @ keys.T * scale  # [g, W, T]
        if soft_cap > 0:
            x = soft_cap * np.tanh(x / soft_cap)
        x = np.where(visible & finite[h], x, -np.inf)
        sink = np.full((group, 1, 1), -np.inf)  # takes a share of the attention, keeps no token
        if len(sinks) > 0:
            sink[:, 0, 0] = sinks[h * group : (h + 1) * group]
        top = np.maximum(x.max(axis=-1, keepdims=True), sink)
        p = np.exp(x - top)
        p /= p.sum(axis=-1, keepdims=True) + np.exp(sink - top)
        total[h] = over_group(p.sum(axis=1), axis=0) / np.maximum(seen, 1)
        last[h] = over_group(p[:, -1], axis=0)
    return total, last


@njit
def _geometry(k: F32, finite: Bool, norm: F64, lo: int, hi: int) -> tuple[F64, F64, F64]:
    """Step 3: cosine dissimilarity c and distance e to the centroid of the candidates, |m|^2."""
    n_heads, n_tokens, d = k.shape
    cos = np.full((n_heads, n_tokens), np.nan)
    euc = np.full((n_heads, n_tokens), np.nan)
    m2 = np.zeros(n_heads)
    for h in range(n_heads):
        n = 0
        square = 0.0
        for t in range(lo, hi):
            if finite[h, t]:
                n += 1
                square += norm[h, t] ** 2
        floor = 1e-6 * np.sqrt(square / n) if n > 0 else 0.0
        mu = np.zeros(d)
        m = np.zeros(d)
        for t in range(lo, hi):
            if finite[h, t]:
                size = max(norm[h, t], floor)
                for i in range(d):
                    mu[i] += k[h, t, i]
                    m[i] += k[h, t, i] / size if size > 0.0 else 0.0
        if n > 0:
            mu /= n
            m /= n
        m2[h] = (m * m).sum()
        for t in range(n_tokens):
            if finite[h, t]:
                size = max(norm[h, t], floor)
                um = 0.0
                e2 = 0.0
                for i in range(d):
                    um += k[h, t, i] * m[i]
                    e2 += (k[h, t, i] - mu[i]) ** 2
                cos[h, t] = 1.0 - (um / size if size > 0.0 else 0.0)
                euc[h, t] = np.sqrt(e2)
    return cos, euc, m2


def _check_shapes(k: F32, v: F32, q: F32) -> None:
    if k.ndim != 3 or v.ndim != 3 or q.ndim != 3 or k.shape[:2] != v.shape[:2]:
        raise ValueError(f"keys {k.shape} and values {v.shape} are not [H, T, d] and [H, T, d_v]")
    if q.shape[2] != k.shape[2] or k.shape[0] == 0 or q.shape[0] % k.shape[0] != 0:
        raise ValueError(f"queries {q.shape} do not fit keys {k.shape}: [H*g, W, d] and [H, T, d]")


def features(
    k: F32,
    v: F32,
    q: F32,
    *,
    sinks: int,
    recent: int,
    n_past: int | None = None,
    query_ranks: npt.ArrayLike | None = None,
    scale: float | None = None,
    soft_cap: float = 0.0,
    attn_sinks: F32 | None = None,
    gqa: str = "mean",
) -> Features:
    """Steps 1 (before pooling) and 3 for one layer: k ``[H, T, d]``, v ``[H, T, d_v]``, q
    ``[H*g, W, d]``.

    The queries are those of the tokens ``n_past .. n_past + W``, by default of the last W; or
    ``query_ranks`` [W] names the token of each. ``scale`` is the model's own, by default
    ``1/sqrt(d)``; ``attn_sinks`` [H*g] are the attention sinks of the model; ``gqa``
    ("mean" or "max") goes over the query heads. Raises ValueError where the shapes do not fit
    each other.
    """
    _check_shapes(k, v, q)
    n_tokens = k.shape[1]
    lo = min(sinks, n_tokens)
    hi = max(lo, n_tokens - recent)
    first = n_tokens - q.shape[1] if n_past is None else n_past
    ranks = np.arange(first, first + q.shape[1]) if query_ranks is None else query_ranks
    ranks = np.asarray(ranks, np.int32)
    if len(ranks) != q.shape[1] or len(ranks) == 0 or ranks.min() < 0 or ranks.max() >= n_tokens:
        raise ValueError(f"{q.shape[1]} queries of tokens {ranks.tolist()}, of {n_tokens} tokens")
    finite = np.logical_and(np.isfinite(k).all(-1), np.isfinite(v).all(-1))
    with np.errstate(invalid="ignore", over="ignore"):
        key_norm = np.where(finite, np.linalg.norm(k.astype(np.float64), axis=-1), np.nan)
        value_norm = np.where(finite, np.linalg.norm(v.astype(np.float64), axis=-1), np.nan)
    attn, attn_last = _attention(
        k,
        q,
        ranks,
        finite,
        float(k.shape[2] ** -0.5 if scale is None else scale),
        soft_cap,
        np.zeros(0, np.float32) if attn_sinks is None else attn_sinks,
        np.max if gqa == "max" else np.mean,
    )
    cos, euc, m2 = _geometry(k, finite, key_norm, lo, hi)
    return Features(lo, hi, finite, attn, attn_last, key_norm, cos, euc, value_norm, m2)
