"""Accuracy against budget, as curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecokv_local.evaluate.table import Row
from ecokv_local.report import new_figure

_MARKS = "osD^v<>P*X"


def accuracy_figure(found: Sequence[Row]) -> Any:
    """A panel per task and way to evict: a curve per policy with its 95 % intervals, the full
    cache as a line.
    """
    rows = [row for row in found if row.kind == "all"]
    panels = list(
        dict.fromkeys((r.task, r.when, r.cache) for r in rows if r.policy != "full")
    ) or list(dict.fromkeys((r.task, r.when, r.cache) for r in rows))
    figure, axes = new_figure(1, len(panels), width=1.5 + 4.2 * len(panels), height=4.2)
    names = list(dict.fromkeys(r.policy for r in rows if r.policy != "full"))
    for axis, (task, when, cache) in zip(axes.flat, panels, strict=True):
        full = next(r for r in rows if (r.task, r.cache, r.policy) == (task, cache, "full"))
        axis.axhline(
            full.accuracy, color="#444444", linewidth=1, linestyle="--", label="full cache"
        )
        for i, name in enumerate(names):
            curve = [r for r in rows if (r.task, r.when, r.cache) == (task, when, cache)]
            curve = sorted((r for r in curve if r.policy == name), key=lambda r: r.kept)
            if curve:
                _curve(axis, curve, name, _MARKS[i % len(_MARKS)], highlight=name == "ecokv")
        axis.set_title(f"{task} ({full.n} items, {cache})", fontsize=10)
        axis.set_xlabel(f"KV pairs kept, of {full.n_prompt:.0f} on average")
        axis.set_ylim(-0.03, 1.03)
        axis.grid(axis="y", alpha=0.25)
    axes.flat[0].set_ylabel("share of right answers")
    axes.flat[len(panels) - 1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def _curve(axis: Any, curve: Sequence[Row], name: str, mark: str, *, highlight: bool) -> None:
    middle = [row.accuracy for row in curve]
    errors = [
        [max(0.0, row.accuracy - row.accuracy_low) for row in curve],
        [max(0.0, row.accuracy_high - row.accuracy) for row in curve],
    ]
    axis.errorbar(
        [row.kept for row in curve],
        middle,
        yerr=errors,
        marker=mark,
        markersize=5,
        linewidth=2.2 if highlight else 1.1,
        elinewidth=0.8,
        capsize=2,
        label=name,
        zorder=3 if highlight else 2,
    )
