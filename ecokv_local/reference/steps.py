"""Steps that several policies share, over the candidates of one KV head: arrays ``[n]`` in f64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ecokv_local.reference.measure import F64, Bool, Features


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
    def pooling(self) -> str: ...
    @property
    def gqa(self) -> str: ...
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
    @property
    def pyramid(self) -> bool: ...
    @property
    def ada(self) -> bool: ...
    @property
    def beta(self) -> float: ...
    @property
    def floor(self) -> float: ...


@dataclass(frozen=True)
class Head:
    """The candidates of one KV head: ``[n]`` each, ``layer_last`` is ``[H, n]`` of its layer.

    ``first`` is the rank of the first of them, ``k`` how many may stay.
    """

    layer: int
    head: int
    first: int
    k: int
    ok: Bool
    attn: F64
    key_norm: F64
    key_cos: F64
    key_euc: F64
    value_norm: F64
    layer_last: F64
    m2: float

    @property
    def n(self) -> int:
        """Number of candidates."""
        return len(self.ok)


def head_of(features: Features, head: int, layer: int, k: int) -> Head:
    """The candidates of a KV head; what is not finite is 0 and not ``ok``."""
    s = slice(features.lo, features.hi)
    ok = features.finite[head, s]

    def candidates(x: F64) -> F64:
        return np.where(ok, x[head, s], 0.0)

    f = features
    return Head(
        layer=layer,
        head=head,
        first=f.lo,
        k=k,
        ok=ok,
        attn=candidates(f.attn),
        key_norm=candidates(f.key_norm),
        key_cos=candidates(f.key_cos),
        key_euc=candidates(f.key_euc),
        value_norm=candidates(f.value_norm),
        layer_last=f.attn_last[:, s],
        m2=float(f.m2[head]),
    )


def mean(x: F64, ok: Bool) -> float:
    """Mean over the finite candidates."""
    return float(x[ok].mean()) if ok.any() else 0.0


def over_mean(x: F64, ok: Bool) -> F64:
    """x / mean(x), 0 everywhere if the mean is 0."""
    m = mean(x, ok)
    return x / m if m > 0 else np.zeros(len(x))


def pool(a: F64, config: Config) -> F64:
    """Step 1: pooling, zero padded; the average is always divided by the kernel."""
    padded = np.pad(a, config.kernel // 2)
    shifted = np.stack([padded[i : i + len(a)] for i in range(config.kernel)])
    if config.pooling == "max":
        return np.asarray(shifted.max(axis=0))
    return np.asarray(shifted.sum(axis=0) / config.kernel)


def scaled(x: F64, ok: Bool, min_range: float) -> tuple[F64, bool]:
    """Step 4: N(x) in [0, 1]; 0 everywhere where it tells nothing apart."""
    if not ok.any():
        return np.zeros(len(x)), False
    middle, sd = x[ok].mean(), x[ok].std()
    lo = max(x[ok].min(), middle - 3 * sd)
    hi = min(x[ok].max(), middle + 3 * sd)
    if not hi - lo > min_range:
        return np.zeros(len(x)), False
    return np.clip((x - lo) / (hi - lo), 0.0, 1.0), True


def redundancy_cos(m2: float, ok: Bool) -> float:
    """Step 6: n tokens have the mean pairwise cosine (n|m|^2 - 1)/(n - 1), clipped to [0, 1]."""
    n = int(ok.sum())
    return float(np.clip((n * m2 - 1) / (n - 1), 0, 1)) if n > 1 else 0.0
