"""From results to rows: accuracy, retention of the full cache, and the difference to a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ecokv_local.evaluate.run import Result
from ecokv_local.evaluate.statistics import (
    Interval,
    Scores,
    difference_interval,
    mcnemar,
    mean_interval,
    retention_interval,
)
from ecokv_local.evaluate.variants import FULL, Variant


@dataclass(frozen=True)
class Row:
    """One variant on one task (or kind of a task). Accuracy and retention are shares, ``*_low`` and
    ``*_high`` 95 % intervals; ``kept`` is the mean of the KV pairs per layer and KV head.
    ``difference`` and the rest are against the baseline policy at the same budget, None for it.
    """

    task: str
    kind: str
    cache: str
    policy: str
    budget: str
    when: str
    n: int
    kept: float
    n_prompt: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    retention: float
    retention_low: float
    retention_high: float
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    gained: int | None = None
    lost: int | None = None
    p_value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def rows(
    results: Sequence[Result],
    variants: Sequence[Variant],
    *,
    cache: str,
    baseline: str,
    by_kind: bool = False,
    full: Mapping[str, float] | None = None,
) -> list[Row]:
    """Rows of every task in the order of ``variants``; items with errors are left out.

    ``baseline`` is the label of a policy. ``by_kind`` gives a row for every kind of question, too.
    ``full`` are the scores, by key of the item, that retention is of: those of the full cache of
    another type; without them, the full cache of this one.
    """
    whole = [result for result in results if result.error is None]
    found = []
    for task in dict.fromkeys(result.item.task for result in whole):
        of_task = [result for result in whole if result.item.task == task]
        kinds = sorted({result.item.kind for result in of_task}) if by_kind else []
        for kind in ["all", *kinds]:
            chosen = [r for r in of_task if kind in ("all", r.item.kind)]
            of_full = [(full or {}).get(r.item.key, r.scores[FULL.label]) for r in chosen]
            names = (task, kind, cache, baseline)
            found += _rows_of(chosen, variants, np.array(of_full), *names)
    return found


def _rows_of(
    results: Sequence[Result],
    variants: Sequence[Variant],
    full: Scores,
    task: str,
    kind: str,
    cache: str,
    baseline: str,
) -> list[Row]:
    scores = {v.label: np.array([r.scores[v.label] for r in results]) for v in variants}
    return [
        Row(
            task,
            kind,
            cache,
            "full" if variant.policy is None else variant.policy.label,
            "100%" if variant.budget is None else str(variant.budget),
            "-" if variant.policy is None else variant.when,
            len(results),
            float(np.mean([r.replies[variant.label].n_kept for r in results])),
            float(np.mean([r.replies[variant.label].n_prompt for r in results])),
            float(scores[variant.label].mean()),
            *mean_interval(scores[variant.label]),
            float(scores[variant.label].mean() / full.mean()) if full.any() else 0.0,
            *retention_interval(scores[variant.label], full),
            *_against(scores, variant, variants, baseline),
        )
        for variant in variants
    ]


def _against(
    scores: dict[str, Scores], variant: Variant, variants: Sequence[Variant], baseline: str
) -> tuple[Any, ...]:
    """Difference with its interval, items gained and lost, p-value; against the baseline."""
    base = next((v for v in variants if _is_base(v, variant, baseline)), None)
    if base is None or variant.policy is None:
        return (None,) * 6
    ours, theirs = scores[variant.label], scores[base.label]
    interval: Interval = difference_interval(ours, theirs)
    return (float((ours - theirs).mean()), *interval, *mcnemar(ours, theirs))


def _is_base(base: Variant, variant: Variant, label: str) -> bool:
    return (
        base.policy is not None
        and base.policy.label == label
        and variant.policy is not None
        and variant.policy.label != label
        and (base.budget, base.when) == (variant.budget, variant.when)
    )


HEADER = ("task", "policy", "budget", "when", "n", "kept", "accuracy", "95 %", "retention", "95 %")
AGAINST = ("difference", "95 %", "gained", "lost", "p")


def cells(row: Row, *, against: bool) -> list[str]:
    """A row as text, under ``HEADER``, and ``AGAINST`` if that is asked for."""
    task = row.task if row.kind == "all" else f"{row.task}: {row.kind}"
    if row.cache != "f16/f16":
        task = f"{task} ({row.cache})"
    text = [task, row.policy, row.budget, row.when, str(row.n), f"{row.kept:.0f}"]
    text += [f"{row.accuracy:.1%}", _pair(row.accuracy_low, row.accuracy_high)]
    text += [f"{row.retention:.1%}", _pair(row.retention_low, row.retention_high)]
    if not against:
        return text
    if row.difference is None or row.difference_low is None or row.difference_high is None:
        return [*text, *[""] * len(AGAINST)]
    p = row.p_value or 0.0
    text += [f"{row.difference:+.1%}", _pair(row.difference_low, row.difference_high)]
    return [*text, str(row.gained), str(row.lost), "<0.001" if p < 0.001 else f"{p:.3f}"]


def _pair(low: float, high: float) -> str:
    return f"{100 * low:.1f}..{100 * high:.1f}"


def markdown(found: Sequence[Row], *, against: bool) -> str:
    """The rows as a table for documents."""
    header = [*HEADER, *(AGAINST if against else ())]
    lines = [header, ["---"] * 4 + ["---:"] * (len(header) - 4)]
    lines += [cells(row, against=against) for row in found]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
