"""Pure comparisons of one layer: features, kept sets, moved rows. ``H`` KV heads, ``T`` rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ecokv_local.reference import Features

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

#: What is compared, by the names of the native arrays: the stored rows first, what is made of them
#: after.
FEATURES = ("key_norm", "value_norm", "head_m2", "key_cos", "key_euc", "attn", "attn_last")
#: Of the cut, in units of the mean score of the head: scores this near are a tie.
TIE = 1e-6
_TINY = 1e-300


def reference_array(features: Features, name: str) -> F64:
    """A feature by its native name, ``[H, T]``; ``head_m2`` as ``[H, 1]``."""
    if name == "head_m2":
        return np.asarray(features.m2, np.float64)[:, None]
    return np.asarray(getattr(features, name), np.float64)


def layer_of(native: Mapping[str, F32], layer: int, n_heads: int) -> dict[str, F64]:
    """Native features of a layer under the same names and shapes."""
    result = {}
    for name in FEATURES:
        array = native[name][layer, :n_heads].astype(np.float64)
        result[name] = array[:, None] if name == "head_m2" else array
    return result


def scale_of(features: Features, name: str) -> F64:
    """What an error of a feature is measured by, ``[H, T]``: never below what it is worth less of.

    - ``key_norm``, ``value_norm``: the value, but at least 1e-6 of the head's rms.
    - ``attn``, ``attn_last``: the value, but at least its mean over the candidates. Step 2 divides
      by that mean; an attention far below it does not matter, however small it is.
    - ``key_cos``: the value, but at least its mean over the candidates, for the same reason, and at
      least 1e-3: it is a difference from 1, so that rounding alone leaves it some 1e-7.
    - ``key_euc``: the value, but at least 1e-3 of the rms of the keys, below which step 4 calls
      distances uninformative.
    - ``head_m2``: the value, but at least 1/n, below which step 6 clips it.
    """
    value: F64 = np.abs(reference_array(features, name))
    lo, hi = features.lo, features.hi
    if name == "head_m2":
        return np.asarray(np.maximum(value, 1 / max(1, hi - lo)))
    if name == "key_euc":
        return np.maximum(value, 1e-3 * _rms(reference_array(features, "key_norm")))
    if name in ("key_norm", "value_norm"):
        return np.maximum(value, 1e-6 * _rms(value))
    mean = _mean(value[:, lo:hi])
    return np.asarray(np.maximum(np.maximum(value, mean), 1e-3 if name == "key_cos" else 0.0))


def _mean(x: F64) -> F64:
    """Over what is finite, ``[H, 1]``; 0 where nothing is."""
    ok = np.isfinite(x)
    total = np.where(ok, x, 0.0).sum(-1, keepdims=True)
    return np.asarray(total / np.maximum(1, ok.sum(-1, keepdims=True)))


def _rms(x: F64) -> F64:
    return np.asarray(np.sqrt(_mean(x**2)))


def relative_error(native: F64, reference: F64, scale: F64) -> F64:
    """|native - reference| / scale; infinite where only one of the two is a number."""
    both_bad = ~np.isfinite(native) & ~np.isfinite(reference)
    with np.errstate(invalid="ignore"):
        gap = np.abs(native - reference)
        error = np.where(gap == 0, 0.0, gap / np.maximum(scale, _TINY))
    return np.where(both_bad, 0.0, np.where(np.isfinite(error), error, np.inf))


def feature_errors(native: Mapping[str, F64], features: Features) -> dict[str, F64]:
    """Relative errors of every feature of a layer, ``[H, T]`` (``head_m2``: ``[H, 1]``)."""
    return {
        name: relative_error(
            native[name], reference_array(features, name), scale_of(features, name)
        )
        for name in FEATURES
    }


def score_error(native: F32, reference: F32) -> float:
    """Largest error of scores ``[H, T]`` in units of the head's mean score; infinite where only
    one is.
    """
    a, b = native.astype(np.float64), reference.astype(np.float64)
    same = a == b  # infinities included
    error = relative_error(np.where(same, 0.0, a), np.where(same, 0.0, b), score_unit(reference))
    return float(error.max(initial=0.0))


def score_unit(scores: F32) -> F64:
    """Mean absolute score of the candidates of each head, ``[H, 1]``."""
    return _mean(np.abs(scores.astype(np.float64)))


@dataclass(frozen=True)
class KeptPair:
    """Two kept sets of one layer. ``only_native`` and ``only_reference`` list (head, rank, gap):
    the distance of its reference score to the cut in units of the mean score.
    """

    n_equal: int
    only_native: tuple[tuple[int, int, float], ...]
    only_reference: tuple[tuple[int, int, float], ...]

    @property
    def differ(self) -> tuple[tuple[int, int, float], ...]:
        """Ranks that only one of the two keeps, head by head, those of the native set first."""
        both = [*self.only_native, *self.only_reference]
        return tuple(sorted(both, key=lambda x: x[0]))

    @property
    def wrong(self) -> tuple[tuple[int, int, float], ...]:
        """Those of them that are no tie."""
        return tuple(x for x in self.differ if not x[2] <= TIE)

    @property
    def n_wrong(self) -> int:
        """Ranks that are replaced and are no tie."""
        sides = (self.only_native, self.only_reference)
        return max(sum(not gap <= TIE for *_, gap in side) for side in sides)


def compare_kept(native: I32, reference: I32, scores: F32) -> KeptPair:
    """Kept ranks ``[H, k]`` of both, and the scores ``[H, T]`` that the reference chose by."""
    n_equal = 0
    sides: tuple[list[tuple[int, int, float]], list[tuple[int, int, float]]] = ([], [])
    unit = score_unit(scores)[:, 0]
    for h, (a, b) in enumerate(zip(native, reference, strict=True)):
        n_equal += len(np.intersect1d(a, b))
        chosen = scores[h, b].astype(np.float64)
        chosen = chosen[np.isfinite(chosen)]
        cut = chosen.min() if len(chosen) else np.inf
        for side, ranks in zip(sides, (np.setdiff1d(a, b), np.setdiff1d(b, a)), strict=True):
            for rank in ranks:
                gap = abs(float(scores[h, rank]) - cut) / max(unit[h], _TINY)
                side.append((h, int(rank), float(gap) if np.isfinite(gap) else np.inf))
    return KeptPair(n_equal, tuple(sides[0]), tuple(sides[1]))


def gathered(rows: Bytes, keep: I32) -> Bytes:
    """What has to be there after an apply: rows ``[T, H * bytes]``, keep ``[H, k]`` ->
    ``[k, H, bytes]``.
    """
    split = by_head(rows, keep.shape[0])
    return np.take_along_axis(split, keep.T[:, :, None].astype(np.int64), axis=0)


def by_head(rows: Bytes, n_heads: int) -> Bytes:
    """``[T, H * bytes]`` -> ``[T, H, bytes]``."""
    return rows.reshape(len(rows), n_heads, -1)


def first_of(bad: npt.NDArray[Any]) -> tuple[int, ...]:
    """Index of the first true element."""
    return tuple(int(i) for i in np.argwhere(bad)[0])
