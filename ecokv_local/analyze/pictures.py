"""Heat maps of the heads, scatters of importance and diversity, and attention held by budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from ecokv_local.analyze.measure import F64, KINDS
from ecokv_local.analyze.reading import Analysis
from ecokv_local.report import new_figure

_MARKS = "osD^v<>P*X"


def redundancy(found: Analysis) -> Any:
    """r_cos, r_euc and the weight of diversity, layer by head."""
    titles = {
        "r_cos": "r_cos: mean pairwise cosine",
        "r_euc": "r_euc: closeness to the centroid",
        "weight": "weight of diversity",
    }
    return _maps([(title, found.heads[name]) for name, title in titles.items()], (0, 1), "magma")


def correlation(found: Analysis) -> Any:
    """Rank correlations and overlaps, by kind of token, layer by head."""
    rows = [
        [
            (f"importance, diversity: {name} ({kind.n})", kind.rank_id),
            (f"cosine, Euclid: {name} ({kind.n})", kind.rank_ce),
        ]
        for name, kind in found.kinds.items()
        if np.isfinite(kind.rank_id).any()
    ]
    return _maps([part for row in rows for part in row], (-1, 1), "RdBu_r", columns=2)


def _maps(parts: Any, limits: tuple[float, float], colours: str, columns: int = 3) -> Any:
    rows = -(-len(parts) // columns)
    figure, axes = new_figure(rows, columns, width=4.2 * columns, height=1.9 * rows + 0.3)
    for axis, (title, values) in zip(axes.flat, parts, strict=False):
        image = axis.imshow(values.T, vmin=limits[0], vmax=limits[1], cmap=colours, aspect="auto")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("layer")
        axis.set_ylabel("KV head")
        axis.set_yticks(range(values.shape[1]))
    figure.colorbar(image, ax=axes)
    return figure


def scatter(found: Analysis) -> Any:
    """Importance against diversity of the first prompt, in the heads of lowest, middle and highest
    weight of diversity.
    """
    weight = found.example.weight
    order = np.argsort(weight, axis=None)
    chosen = [order[0], order[len(order) // 2], order[-1]]
    figure, axes = new_figure(1, 3, width=11, height=3.6)
    for axis, flat in zip(axes.flat, chosen, strict=True):
        layer, head = np.unravel_index(flat, weight.shape)
        for rows, name in ((found.is_image, "image"), (~found.is_image, "text")):
            x = found.example.importance[layer, head][rows]
            y = found.example.diversity[layer, head][rows]
            if np.isfinite(x).any():
                axis.scatter(x, y, s=12, alpha=0.7, label=name)
        axis.set_xscale("symlog", linthresh=0.1)
        axis.set_xlabel("importance (1 is the mean)")
        axis.set_title(
            f"layer {layer}, KV head {head}: weight {weight[layer, head]:.2f}", fontsize=10
        )
        axis.grid(alpha=0.25)
    axes[0, 0].set_ylabel("diversity (1 is the mean)")
    axes[0, 0].legend(fontsize=8)
    return figure


def attention(found: Analysis) -> Any:
    """Share of the window's attention that each policy holds, and of the tokens, by kind."""
    kinds = [kind for kind in KINDS if any(kind in kept.mass for kept in found.kept.values())]
    figure, axes = new_figure(1, len(kinds), width=3.9 * len(kinds) + 1.6, height=3.9, sharey=True)
    policies = list(dict.fromkeys(policy for policy, _ in found.kept))
    for axis, kind in zip(axes.flat, kinds, strict=True):
        for i, policy in enumerate(policies):
            points = [k for (p, _), k in found.kept.items() if p == policy and kind in k.mass]
            points = sorted(points, key=lambda k: k.tokens["all"])
            axis.plot(
                [k.tokens["all"] for k in points],
                [k.mass[kind] for k in points],
                marker=_MARKS[i % len(_MARKS)],
                label=policy,
                linewidth=2.2 if policy == "ecokv" else 1.1,
            )
        axis.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, linestyle=":")
        axis.set_title(f"attention to {kind} tokens", fontsize=10)
        axis.set_xlabel("share of all KV pairs kept")
        axis.set_xlim(0, max(k.tokens["all"] for k in found.kept.values()) * 1.05)
        axis.grid(alpha=0.25)
    axes[0, 0].set_ylabel("share of the attention held")
    axes[0, -1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def quantiles(values: F64) -> tuple[float, float, float]:
    """10 %, 50 % and 90 % over heads; NaN without any."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return (float("nan"),) * 3
    low, middle, high = np.quantile(finite, [0.1, 0.5, 0.9])
    return float(low), float(middle), float(high)
