"""Decode speed and bytes of K and V against depth, as curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecokv_local.bench.formats import TEXT_COLUMNS, table
from ecokv_local.bench.rows import Row
from ecokv_local.report import Page, new_figure

_MARKS = "osD^v<>P*X"


def curves(found: Sequence[Row]) -> Any:
    """A figure of two panels; a curve per cache type, policy and budget."""
    figure, axes = new_figure(1, 2, width=10, height=4)
    names = list(dict.fromkeys((r.cache, r.policy, r.budget) for r in found))
    several = len({cache for cache, _, _ in names}) > 1
    for i, name in enumerate(names):
        rows = sorted(
            (r for r in found if (r.cache, r.policy, r.budget) == name), key=lambda r: r.depth
        )
        label = " ".join(part for part in name[0 if several else 1 :] if part != "-")
        style: dict[str, Any] = {"marker": _MARKS[i % len(_MARKS)], "label": label}
        if name[1] in ("full", "stock"):
            style |= {"linestyle": "--", "color": "#444444" if name[1] == "full" else "#999999"}
        depths = [row.depth for row in rows]
        axes[0, 0].errorbar(
            depths,
            [row.decode_tokens_per_s for row in rows],
            yerr=[row.decode_sd_tokens_per_s for row in rows],
            capsize=2,
            **style,
        )
        if name[1] != "stock":
            axes[0, 1].plot(depths, [row.kv_bytes / 2**20 for row in rows], **style)
    axes[0, 0].set_ylabel("decoding, tokens/s")
    axes[0, 1].set_ylabel("K and V, MiB")
    axes[0, 1].set_yscale("log")
    axes[0, 0].set_ylim(bottom=0)
    for axis in axes.flat:
        axis.set_xlabel("depth, tokens")
        axis.grid(alpha=0.25)
    axes[0, 1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def page(found: Sequence[Row], title: str) -> Page:
    """Curves and the table, in one file."""
    result = Page(title)
    result.figure(curves(found))
    result.table(*table(found), text_columns=TEXT_COLUMNS)
    result.paragraph(
        "Decoding takes turns between the rows; ratios are medians over the repetitions. short: "
        "the full cache of a prompt as long as the budget. stock: unpatched llama.cpp.",
        note=True,
    )
    return result
