"""Intervals and tests of paired scores. All by scipy; the same scores give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]
Interval = tuple[float, float]

_RESAMPLES = 2000
#: From this score on an answer counts as right, where only right and wrong are counted.
RIGHT = 0.8


def mean_interval(scores: Scores) -> Interval:
    """95 % bootstrap interval of the mean."""
    return _interval((scores,), lambda a, axis: np.mean(a, axis=axis))


def difference_interval(scores: Scores, base: Scores) -> Interval:
    """95 % paired bootstrap interval of mean(scores) - mean(base)."""
    return mean_interval(scores - base)


def retention_interval(scores: Scores, full: Scores) -> Interval:
    """95 % paired bootstrap interval of mean(scores) / mean(full); zeros where nothing is right."""
    if not full.any():
        return 0.0, 0.0

    def ratio(a: Any, b: Any, axis: int) -> Any:
        return np.mean(a, axis=axis) / np.maximum(np.mean(b, axis=axis), 1e-9)

    return _interval((scores, full), ratio)


def _interval(samples: tuple[Scores, ...], statistic: Callable[..., Any]) -> Interval:
    from scipy.stats import bootstrap

    value = float(statistic(*samples, axis=0))
    if len(samples[0]) < 2 or all(np.ptp(sample) == 0 for sample in samples):
        return value, value  # nothing varies
    found = bootstrap(
        samples,
        statistic,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=_RESAMPLES,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def mcnemar(scores: Scores, base: Scores) -> tuple[int, int, float]:
    """Items that only ``scores`` got right, items that only ``base`` got right, and the p-value of
    the exact test that both are equally likely (McNemar 1947).
    """
    from scipy.stats import binomtest

    ours, theirs = scores >= RIGHT, base >= RIGHT
    gained, lost = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    if gained + lost == 0:
        return 0, 0, 1.0
    return gained, lost, float(binomtest(gained, gained + lost).pvalue)
