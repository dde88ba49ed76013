"""Numbers of one prompt, by layer and KV head; for all tokens, those of pictures and of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ecokv_local.parts import Parts

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

KINDS = ("all", "image", "text")
#: Share of the candidates whose overlap is looked at.
TOP = 0.2
_LEAST = 8  # candidates of a kind that correlations make sense for


@dataclass(frozen=True)
class Kind:
    """Of the candidates of one kind, ``[L, H]`` each, NaN where there are too few.

    ``rank_id`` is Spearman's correlation of importance and diversity, ``overlap_id`` the share of
    the top 20 % that they have in common; ``rank_ce`` and ``overlap_ce`` the same of the cosine and
    the Euclidean distance to the centroid.
    """

    n: int
    rank_id: F64
    overlap_id: F64
    rank_ce: F64
    overlap_ce: F64


@dataclass(frozen=True)
class Kept:
    """What a policy keeps at a budget: the share of the window's attention, by kind of token, and
    the share of the tokens of that kind, both mean over layers and heads.
    """

    mass: dict[str, float]
    tokens: dict[str, float]


def kinds_of(is_image: Bool) -> dict[str, Bool]:
    """Masks ``[T]`` of the rows of a prompt, by kind."""
    return {"all": np.ones_like(is_image), "image": is_image, "text": ~is_image}


def correlations(parts: Parts, rows: Bool) -> Kind:
    """Of the candidates among ``rows`` [T]; sinks and recents are none."""
    candidates = rows & np.isfinite(parts.importance[0, 0])
    n = int(candidates.sum())
    shape = parts.weight.shape
    if n < _LEAST:
        nothing = np.full(shape, np.nan)
        return Kind(n, nothing, nothing, nothing, nothing)
    importance, diversity, cosine, euclid = (
        x[..., candidates] for x in (parts.importance, parts.diversity, parts.cosine, parts.euclid)
    )
    return Kind(
        n,
        _over_heads(_spearman, importance, diversity),
        _over_heads(_overlap, importance, diversity),
        _over_heads(_spearman, cosine, euclid),
        _over_heads(_overlap, cosine, euclid),
    )


def _over_heads(function: Any, a: F64, b: F64) -> F64:
    n_layer, n_head, _ = a.shape
    values = [[function(a[i, j], b[i, j]) for j in range(n_head)] for i in range(n_layer)]
    return np.array(values, np.float64)


def _spearman(a: F64, b: F64) -> float:
    from scipy.stats import spearmanr

    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")  # nothing to rank
    return float(spearmanr(a, b).statistic)


def _overlap(a: F64, b: F64) -> float:
    k = max(1, round(TOP * len(a)))
    tops = [set(np.argsort(-x, kind="stable")[:k].tolist()) for x in (a, b)]
    return len(tops[0] & tops[1]) / k


def kept_of(attention: F64, keep: npt.NDArray[np.int32], kinds: dict[str, Bool]) -> Kept:
    """Of ranks ``[L, H, n]`` (-1 for none) and the window's attention ``[L, H, T]``."""
    mask = np.zeros(attention.shape, bool)
    layers, heads, places = np.nonzero(keep >= 0)
    mask[layers, heads, keep[layers, heads, places]] = True
    mass, tokens = {}, {}
    for name, rows in kinds.items():
        if not rows.any():
            continue
        whole = attention[..., rows].sum(axis=-1)
        held = np.where(mask, attention, 0.0)[..., rows].sum(axis=-1)
        mass[name] = float((held / np.maximum(whole, 1e-12)).mean())
        tokens[name] = float(mask[..., rows].mean())
    return Kept(mass, tokens)
