"""Features, scores, selection and compaction, step by step as in ``docs/method.md``.

For one layer. Keys are as stored (after RoPE), queries are those of the last ``W`` tokens. Sums of
many terms are taken in f64. ``T`` tokens, ``H`` KV heads, ``g`` query heads per KV head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ecokv_local.reference.jit import njit

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


class Config(Protocol):
    """What the definition reads of an ``EvictionConfig``."""

    @property
    def policy(self) -> str: ...
    @property
    def n_sinks(self) -> int: ...
    @property
    def n_recent(self) -> int: ...
    @property
    def kernel(self) -> int: ...
    @property
    def compose(self) -> str: ...
    @property
    def head_weight(self) -> str | float: ...
    @property
    def value_norm(self) -> str: ...
    @property
    def lam(self) -> float: ...
    @property
    def seed(self) -> int: ...


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
    key_norm: F64
    key_cos: F64
    key_euc: F64
    value_norm: F64
    m2: F64


# ---- features ------------------------------------------------------------------------------------


@njit
def _attention(
    k: F32, q: F32, ranks: I32, finite: Bool, scale: float, soft_cap: float, sinks: F32
) -> F64:
    """Step 1 before pooling: mean attention of the queries that see a token, mean over the
    group.
    """
    n_heads, n_tokens, d = k.shape
    group = q.shape[0] // n_heads
    total = np.zeros((n_heads, n_tokens))
    seen = np.zeros(n_tokens)
    for j in range(len(ranks)):
        seen[: ranks[j] + 1] += 1.0
    for hq in range(q.shape[0]):
        h = hq // group
        for j in range(len(ranks)):
            n = ranks[j] + 1
            x = np.full(n, -np.inf)
            for t in range(n):
                if finite[h, t]:
                    s = 0.0
                    for i in range(d):
                        s += float(q[hq, j, i]) * float(k[h, t, i])
                    s *= scale
                    x[t] = soft_cap * np.tanh(s / soft_cap) if soft_cap > 0.0 else s
            top = x.max()
            if len(sinks) > 0:
                top = max(top, sinks[hq])
            p = np.exp(x - top)
            z = p.sum() + (np.exp(sinks[hq] - top) if len(sinks) > 0 else 0.0)
            total[h, :n] += p / z
    for t in range(n_tokens):
        if seen[t] > 0:
            total[:, t] /= seen[t] * group
    return total


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


def features(
    k: F32,
    v: F32,
    q: F32,
    *,
    sinks: int,
    recent: int,
    query_ranks: npt.ArrayLike | None = None,
    scale: float | None = None,
    soft_cap: float = 0.0,
    attn_sinks: F32 | None = None,
) -> Features:
    """Features of one layer: k ``[H, T, d]``, v ``[H, T, d_v]``, q ``[H*g, W, d]``.

    ``query_ranks`` [W]: the token that asked each query, by default the last W. ``scale`` is the
    model's own, by default ``1/sqrt(d)``; ``attn_sinks`` [H*g] are the attention sinks of the
    model.
    """
    n_tokens = k.shape[1]
    lo = min(sinks, n_tokens)
    hi = max(lo, n_tokens - recent)
    ranks = np.asarray(
        np.arange(n_tokens - q.shape[1], n_tokens) if query_ranks is None else query_ranks, np.int32
    )
    finite = np.logical_and(np.isfinite(k).all(-1), np.isfinite(v).all(-1))
    with np.errstate(invalid="ignore", over="ignore"):
        key_norm = np.where(finite, np.linalg.norm(k.astype(np.float64), axis=-1), np.nan)
        value_norm = np.where(finite, np.linalg.norm(v.astype(np.float64), axis=-1), np.nan)
    attn = _attention(
        k,
        q,
        ranks,
        finite,
        float(k.shape[2] ** -0.5 if scale is None else scale),
        soft_cap,
        np.zeros(0, np.float32) if attn_sinks is None else attn_sinks,
    )
    cos, euc, m2 = _geometry(k, finite, key_norm, lo, hi)
    return Features(lo, hi, finite, attn, key_norm, cos, euc, value_norm, m2)


# ---- scores of one head, over the candidates -----------------------------------------------------


def _mean(x: F64, ok: Bool) -> float:
    return float(x[ok].mean()) if ok.any() else 0.0


def _pool(a: F64, ok: Bool, kernel: int) -> F64:
    """Step 1: average pooling, zero padded, always divided by the kernel."""
    a = np.where(ok, a, 0.0)
    r = kernel // 2
    padded = np.pad(a, r)
    total: F64 = np.sum([padded[i : i + len(a)] for i in range(kernel)], axis=0)
    return total / kernel


def _scaled(x: F64, ok: Bool, min_range: float) -> tuple[F64, bool]:
    """Step 4: N(x) in [0, 1]; 0 everywhere where it tells nothing apart."""
    if not ok.any():
        return np.zeros(len(x)), False
    mean, sd = x[ok].mean(), x[ok].std()
    lo = max(x[ok].min(), mean - 3 * sd)
    hi = min(x[ok].max(), mean + 3 * sd)
    if not hi - lo > min_range:
        return np.zeros(len(x)), False
    with np.errstate(invalid="ignore"):
        return np.where(ok, np.clip((x - lo) / (hi - lo), 0.0, 1.0), 0.0), True


def _over_mean(x: F64, ok: Bool) -> F64:
    mean = _mean(x, ok)
    return x / mean if mean > 0 else np.zeros(len(x))


def _importance(a: F64, value_norm: F64, ok: Bool, config: Config) -> F64:
    """Step 2, with the option ``value_norm``."""
    importance = _pool(a, ok, config.kernel)
    if config.value_norm == "mul":
        importance = np.where(ok, importance * value_norm, 0.0)
    importance = _over_mean(importance, ok)
    if config.value_norm == "add":
        share, _ = _scaled(value_norm, ok, 0.0)
        importance = (importance + _over_mean(share, ok)) / 2
    return importance


def _diversity(e: F64, e_ok: bool, c: F64, c_ok: bool, config: Config) -> F64:
    """Step 5: far from the centroid or in another direction; one metric alone where the other is
    mute.
    """
    if not (e_ok and c_ok):
        return e if e_ok else c
    lam = config.lam
    if config.compose == "sum":
        return lam * e + (1 - lam) * c
    if config.compose == "max":
        return np.maximum(e, c)
    if config.compose == "prod":
        return e ** (2 * lam) * c ** (2 * (1 - lam))
    return 1 - (1 - e) ** (2 * lam) * (1 - c) ** (2 * (1 - lam))


def _head_weight(e: F64, e_ok: bool, c_ok: bool, m2: float, ok: Bool, config: Config) -> float:
    """Step 6: how redundant the head is; n tokens have the mean pairwise cosine (n|m|^2 - 1)/(n -
    1).
    """
    if not isinstance(config.head_weight, str):
        return float(config.head_weight)
    if not (e_ok or c_ok):
        return 0.0
    n = int(ok.sum())
    r_cos = float(np.clip((n * m2 - 1) / (n - 1), 0, 1)) if n > 1 else 0.0
    r_euc = 1 - _mean(e, ok)
    weight = {"cos": r_cos, "euclid": r_euc, "both": 0.5 * r_cos + 0.5 * r_euc}
    return float(np.clip(weight[config.head_weight], 0, 1))


def _score_ecokv(f: Features, h: int, layer: int, ok: Bool, config: Config) -> F64:
    s = slice(f.lo, f.hi)
    rms = float(np.sqrt(_mean(f.key_norm[h, s] ** 2, ok)))
    c, c_ok = _scaled(f.key_cos[h, s], ok, 1e-6)
    e, e_ok = _scaled(f.key_euc[h, s], ok, 1e-3 * rms)
    importance = _importance(f.attn[h, s], f.value_norm[h, s], ok, config)
    diversity = _over_mean(_diversity(e, e_ok, c, c_ok, config), ok)
    weight = _head_weight(e, e_ok, c_ok, float(f.m2[h]), ok, config)
    return weight * diversity + (1 - weight) * importance


def _score_snapkv(f: Features, h: int, layer: int, ok: Bool, config: Config) -> F64:
    return _pool(f.attn[h, f.lo : f.hi], ok, config.kernel)


def _score_streaming(f: Features, h: int, layer: int, ok: Bool, config: Config) -> F64:
    return np.arange(f.hi - f.lo, dtype=np.float64)


@njit
def _mix(x: Any) -> Any:
    """splitmix64."""
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit
def _noise(seed: int, layer: int, head: int, lo: int, hi: int) -> F64:
    state = _mix(_mix(_mix(np.uint64(seed)) + np.uint64(layer)) + np.uint64(head))
    out = np.empty(hi - lo)
    for t in range(lo, hi):
        out[t - lo] = np.float64(_mix(state + np.uint64(t)) >> np.uint64(40)) * 2.0**-24
    return out


def _score_random(f: Features, h: int, layer: int, ok: Bool, config: Config) -> F64:
    return _noise(config.seed, layer, h, f.lo, f.hi)


_SCORERS = {
    "ecokv": _score_ecokv,
    "snapkv": _score_snapkv,
    "streaming": _score_streaming,
    "random": _score_random,
}


def scores(features: Features, config: Config, layer: int = 0) -> F32:
    """Step 7: ``[H, T]``, higher stays; +inf for sinks and recents, -inf for tokens with NaN or
    Inf.
    """
    n_heads, n_tokens = features.attn.shape
    out = np.full((n_heads, n_tokens), np.inf, np.float32)
    if config.policy == "none":
        return out
    for h in range(n_heads):
        ok = features.finite[h, features.lo : features.hi]
        score = _SCORERS[config.policy](features, h, layer, ok, config)
        out[h, features.lo : features.hi] = np.where(ok, score, -np.inf)
    return out


# ---- selection and compaction --------------------------------------------------------------------


def select(scores: F32, budget: int, config: Config) -> I32:
    """Ranks that stay, ``[H, min(T, budget)]``, ascending.

    Ties go to the later position. Raises ValueError for a budget below sinks + recents + 1.
    """
    n_heads, n_tokens = scores.shape
    if config.policy == "none" or n_tokens <= budget:
        return np.tile(np.arange(n_tokens, dtype=np.int32), (n_heads, 1))
    smallest = config.n_sinks + config.n_recent + 1
    if budget < smallest:
        raise ValueError(f"a budget of {budget} is below {smallest}, the smallest that works")
    order = np.argsort(scores, axis=-1, kind="stable")  # by score, then by position
    return np.sort(order[:, n_tokens - budget :], axis=-1).astype(np.int32)


def compact(x: npt.NDArray[np.generic], kept: I32) -> npt.NDArray[np.generic]:
    """Rows that stay: x ``[H, T, d]``, kept ``[H, n]`` -> ``[H, n, d]``; copied, never changed."""
    return np.take_along_axis(x, kept[:, :, None].astype(np.int64), axis=1)


def evict(
    k: F32,
    v: F32,
    q: F32,
    budget: int,
    config: Config,
    *,
    layer: int = 0,
    scale: float | None = None,
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic], I32]:
    """All steps on one layer: the kept keys, values and their ranks.

    Raises ValueError if a sink or recent token holds NaN or Inf, or the budget is too small.
    """
    f = features(k, v, q, sinks=config.n_sinks, recent=config.n_recent, scale=scale)
    protected = np.ones(k.shape[1], bool)
    protected[f.lo : f.hi] = False
    if k.shape[1] > budget and not f.finite[:, protected].all():
        raise ValueError("a protected token (sink or recent) holds NaN or Inf")
    kept = select(scores(f, config, layer), budget, config)
    return compact(k, kept), compact(v, kept), kept
