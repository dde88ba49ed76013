"""One policy a file, each with one pure function ``score(head, config) -> [n]``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ecokv_local.reference.measure import F64
from ecokv_local.reference.policies import (
    critical,
    ecokv,
    euclid,
    keydiff,
    knorm,
    mixkv,
    random,
    snapkv,
    streaming,
    tova,
    vatp,
)
from ecokv_local.reference.steps import Config, Head

Score = Callable[[Head, Config], F64]

_SCORES: dict[str, Score] = {
    "ada": snapkv.score,
    "critical": critical.score,
    "ecokv": ecokv.score,
    "euclid": euclid.score,
    "keydiff": keydiff.score,
    "knorm": knorm.score,
    "mixkv": mixkv.score,
    "pyramid": snapkv.score,
    "random": random.score,
    "snapkv": snapkv.score,
    "streaming": streaming.score,
    "tova": tova.score,
    "vatp": vatp.score,
}


def _lifted(x: F64, head: Head) -> F64:
    """A score of any sign as an importance: the least is worth nothing, none is worth less."""
    least = x[head.ok].min() if head.ok.any() else 0.0
    return np.asarray(x - min(0.0, least))


def score_of(policy: str) -> Score:
    """The score of a policy, or of ``<host>+ecokv``: the host's score in place of the
    importance.
    """
    host, _, plus = policy.partition("+")
    if not plus:
        return _SCORES[host]

    def score(head: Head, config: Config) -> F64:
        # the host scores in f32, as it does alone
        x = _SCORES[host](head, config).astype(np.float32).astype(np.float64)
        return ecokv.score_with(_lifted(x, head), head, config)

    return score
