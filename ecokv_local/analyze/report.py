"""Tables, pictures and the page of an analysis."""

from __future__ import annotations

import json
from pathlib import Path

from ecokv_local.analyze import pictures
from ecokv_local.analyze.reading import Analysis
from ecokv_local.report import Page, to_png
from ecokv_local.report.figure import write

HEAD_HEADER = ("over all heads", "tokens", "10 %", "median", "90 %")
KEPT_HEADER = ("policy", "budget", "tokens kept", "attention", "to pictures", "to text")

_DRAWN = {
    "redundancy.png": pictures.redundancy,
    "correlation.png": pictures.correlation,
    "scatter.png": pictures.scatter,
    "attention.png": pictures.attention,
}
_TITLES = {
    "redundancy.png": "Redundancy of the heads",
    "correlation.png": "Rank correlations",
    "scatter.png": "Importance against diversity",
    "attention.png": "Attention held by what stays",
}


def head_rows(found: Analysis) -> list[list[str]]:
    """Quantiles over the heads."""
    named = [(name, "all", values) for name, values in found.heads.items()]
    for kind, numbers in found.kinds.items():
        named += [
            ("rank correlation, importance and diversity", kind, numbers.rank_id),
            ("common top 20 %, importance and diversity", kind, numbers.overlap_id),
            ("rank correlation, cosine and Euclid", kind, numbers.rank_ce),
            ("common top 20 %, cosine and Euclid", kind, numbers.overlap_ce),
        ]
    rows = []
    for name, kind, values in named:
        low, middle, high = pictures.quantiles(values)
        if middle == middle:  # not NaN: there are tokens of this kind
            rows.append([name, kind, f"{low:.2f}", f"{middle:.2f}", f"{high:.2f}"])
    return rows


def kept_rows(found: Analysis) -> list[list[str]]:
    """What every policy holds at every budget."""
    return [
        [
            policy,
            budget,
            f"{kept.tokens['all']:.1%}",
            *(f"{kept.mass[kind]:.1%}" if kind in kept.mass else "" for kind in _KINDS),
        ]
        for (policy, budget), kept in found.kept.items()
    ]


_KINDS = ("all", "image", "text")


def save(found: Analysis, folder: str | Path) -> list[Path]:
    """Write analysis.json, the pictures and analysis.html; returns their paths.

    Raises EcokvError if a file cannot be written.
    """
    folder = Path(folder)
    paths = [folder / "analysis.json", folder / "analysis.html"]
    write(paths[0], json.dumps(found.to_dict(), indent=1).encode())
    page = Page(f"The heads of {found.model}")
    page.paragraph(
        f"Means over {found.n_prompts} prompts of {found.n_tokens:.0f} tokens, "
        f"{found.n_image_tokens:.0f} of them of pictures."
    )
    for name, draw in _DRAWN.items():
        figure = draw(found)
        write(folder / name, to_png(figure))
        paths.append(folder / name)
        page.heading(_TITLES[name])
        page.figure(figure)
    page.heading("Numbers")
    page.table(HEAD_HEADER, head_rows(found), text_columns=2)
    page.table(KEPT_HEADER, kept_rows(found), text_columns=2)
    page.save(paths[1])
    return paths
