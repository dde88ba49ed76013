"""What the score of ECOKV is made of, by KV head, from the features of the native code.

The steps are those of ``ecokv_local.reference``, which is the definition (docs/method.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ecokv_local.config import EvictionConfig
from ecokv_local.reference.policies import ecokv as definition
from ecokv_local.reference.steps import Head, mean, over_mean, pool, redundancy_cos, scaled

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """Arrays ``[L, H, T]``, NaN for rows that are no candidates (sinks, recents), and ``[L, H]``.

    ``importance`` and ``diversity`` have mean 1 in every head (steps 2, 5 and 7); ``attention`` is
    pooled, ``cosine`` and ``euclid`` are the distances to the centroid as they are (step 3);
    ``weight`` is the share of diversity in the score, from ``r_cos`` and ``r_euc`` (step 6).
    """

    importance: F64
    diversity: F64
    attention: F64
    cosine: F64
    euclid: F64
    weight: F64
    r_cos: F64
    r_euc: F64


def parts(features: dict[str, Any], config: EvictionConfig) -> Parts:
    """Of ``inspection.features`` made with the sinks and recents of ``config``; pure.

    Raises ValueError if there are no candidates.
    """
    shape = features["attn"].shape
    n_layer, n_head, n_rows = shape
    lo, hi = config.n_sinks, n_rows - config.n_recent
    if hi <= lo:
        raise ValueError(f"{n_rows} rows, {config.n_sinks} sinks and {config.n_recent} recents")
    rows = {name: np.full(shape, np.nan) for name in _ROWS}
    heads = {name: np.zeros((n_layer, n_head)) for name in ("weight", "r_cos", "r_euc")}
    for layer in range(n_layer):
        for head in range(n_head):
            of_rows, of_head = _of_head(_head(features, layer, head, lo, hi), config)
            for name, values in of_rows.items():
                rows[name][layer, head, lo:hi] = values
            for name, value in of_head.items():
                heads[name][layer, head] = value
    return Parts(**rows, **heads)


_ROWS = ("importance", "diversity", "attention", "cosine", "euclid")


def _head(features: dict[str, Any], layer: int, head: int, lo: int, hi: int) -> Head:
    names = ("attn", "key_norm", "key_cos", "key_euc", "value_norm")
    of_head = {n: np.asarray(features[n][layer, head, lo:hi], np.float64) for n in names}
    ok = np.all([np.isfinite(values) for values in of_head.values()], axis=0)
    return Head(
        layer=layer,
        head=head,
        first=lo,
        k=0,
        ok=ok,
        layer_last=np.zeros((1, hi - lo)),
        m2=float(features["head_m2"][layer, head]),
        **{name: np.where(ok, values, 0.0) for name, values in of_head.items()},
    )


def _of_head(head: Head, config: EvictionConfig) -> tuple[dict[str, F64], dict[str, float]]:
    rms = float(np.sqrt(mean(head.key_norm**2, head.ok)))
    c, c_ok = scaled(head.key_cos, head.ok, 1e-6)
    e, e_ok = scaled(head.key_euc, head.ok, 1e-3 * rms)
    attention = pool(head.attn, config)
    rows = {
        "importance": definition.importance(attention, head, config),
        "diversity": over_mean(definition.diversity(e, e_ok, c, c_ok, config), head.ok),
        "attention": attention,
        "cosine": head.key_cos,
        "euclid": head.key_euc,
    }
    heads = {
        "weight": definition.head_weight(e, e_ok, c_ok, head, config),
        "r_cos": redundancy_cos(head.m2, head.ok),
        "r_euc": 1 - mean(e, head.ok),
    }
    return rows, heads
