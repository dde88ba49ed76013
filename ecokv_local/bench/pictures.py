"""Decode speed and bytes of K and V against depth, as curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecokv_local.bench.formats import TEXT_COLUMNS, table
from ecokv_local.bench.rows import Row
from ecokv_local.report import Page, new_figure
from ecokv_local.report.figure import COLOURS

_MARKS = "osD^v<>P*X"
_LINES = ("-", "--", ":", "-.")
_OWN_COLOURS = {"full": "#333333", "stock": "#999999"}

_NOTE = (
    "The caches take turns at decoding; ratios are medians over the repetitions. full: nothing is "
    "evicted. short: the full cache of a prompt as long as the budget. stock: unpatched llama.cpp. "
    "KV MiB: buffers of K and V while decoding. peak RSS: resident memory while the cache is made, "
    "evicted and decodes; the prompt itself was read before."
)


def curves(found: Sequence[Row]) -> Any:
    """A figure of two panels; a curve per cache type, policy and budget. Budgets have colours,
    cache types have dashes.
    """
    figure, axes = new_figure(1, 2, width=10, height=4)
    speed, size = axes[0]
    caches = list(dict.fromkeys(row.cache for row in found))
    kinds = list(dict.fromkeys((row.policy, row.budget) for row in found))
    for cache in caches:
        for kind in kinds:
            rows = [row for row in found if (row.cache, row.policy, row.budget) == (cache, *kind)]
            rows.sort(key=lambda row: row.depth)
            name = " ".join(part for part in kind if part != "-")
            style = {
                "marker": _MARKS[kinds.index(kind) % len(_MARKS)],
                "markersize": 5,
                "color": _colour(kind, kinds),
                "linestyle": _LINES[caches.index(cache) % len(_LINES)],
                "label": f"{name}, {cache}" if len(caches) > 1 else name,
            }
            _curve(speed, size, rows, style)
    speed.set_ylabel("decoding, tokens/s")
    speed.set_ylim(bottom=0)
    size.set_ylabel("K and V, MiB")
    size.set_yscale("log", base=2)
    size.yaxis.set_major_formatter("{x:g}")
    for axis in (speed, size):
        axis.set_xlabel("depth: tokens read before")
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
    handles, names = speed.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", fontsize=9, frameon=False)
    return figure


def _curve(speed: Any, size: Any, rows: Sequence[Row], style: dict[str, Any]) -> None:
    speed.errorbar(
        [row.depth for row in rows],
        [row.decode_tokens_per_s for row in rows],
        yerr=[row.decode_sd_tokens_per_s for row in rows],
        capsize=2,
        **style,
    )
    known = [row for row in rows if row.kv_bytes]
    if known:
        size.plot([row.depth for row in known], [row.kv_bytes / 2**20 for row in known], **style)


def _colour(kind: tuple[str, str], kinds: Sequence[tuple[str, str]]) -> str:
    evicted = [k for k in kinds if k[0] not in _OWN_COLOURS]
    own = _OWN_COLOURS.get(kind[0])
    return own if own is not None else COLOURS[evicted.index(kind) % len(COLOURS)]


def page(found: Sequence[Row], title: str) -> Page:
    """Curves and the table, in one file."""
    result = Page(title)
    result.figure(curves(found))
    result.table(*table(found), text_columns=TEXT_COLUMNS)
    result.paragraph(_NOTE, note=True)
    return result
