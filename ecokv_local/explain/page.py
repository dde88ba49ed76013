"""The page: a slider over budgets, pictures and tokens at each, and what scores are made of."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from ecokv_local.explain import pictures
from ecokv_local.explain.reading import Cut, Explanation
from ecokv_local.report import Page, to_png
from ecokv_local.report.figure import write

_DRAWN = re.compile(r"overview\.png|picture-\d+-(maps|layers|heads)\.png")
_STYLE = """
.cut{display:none}.cut.on{display:block}
.tokens{font-family:ui-monospace,monospace;line-height:2;white-space:pre-wrap}
.tokens span{padding:.1rem 0;border-radius:2px}
.answers{display:flex;gap:2rem;flex-wrap:wrap}.answers div{flex:1 1 16rem}
.answers b{display:block;color:#555;font-weight:600}
input[type=range]{width:20rem;vertical-align:middle}
"""
_SCRIPT = """
(function(){var s=document.getElementById('budget'),c=document.querySelectorAll('.cut');
function show(){c.forEach(function(e,i){e.classList.toggle('on',i==s.value)});
document.getElementById('name').textContent=c[s.value].dataset.name}
s.addEventListener('input',show);show()})();
"""


def page(found: Explanation) -> Page:
    """All of an explanation in one file that opens offline."""
    result = Page(f"What stayed of: {found.question}")
    result.style(_STYLE)
    result.paragraph(
        f"{found.model}, policy {found.label}, {len(found.tokens)} tokens, "
        f"{len(found.pictures)} pictures. Every token of an answer comes from what stayed."
    )
    last = len(found.cuts) - 1
    result.raw(
        f'<p><label>Budget <input type="range" id="budget" min="0" max="{last}" value="{last}">'
        '</label> <b id="name"></b></p>'
    )
    for cut in found.cuts:
        _cut(result, found, cut)
    if found.pictures:
        result.heading("What the score is made of")
        for picture in found.pictures:
            result.image(to_png(pictures.maps(found, picture), dpi=90), f"maps of {picture.name}")
    _head_table(result, found)
    result.paragraph(
        "ECOKV as implemented here is a reading of a published abstract; see docs/method.md.",
        note=True,
    )
    result.script(_SCRIPT)
    return result


def _cut(result: Page, found: Explanation, cut: Cut) -> None:
    name = f"{cut.budget}: {cut.pairs} of {len(found.tokens)} KV pairs"
    result.raw(f'<section class="cut" data-name="{escape(name)}">')
    full, answer = (escape(text) or "(nothing)" for text in (found.answer, cut.answer))
    result.raw(
        f'<div class="answers"><div><b>full cache</b>{full}</div>'
        f"<div><b>{escape(cut.budget)}</b>{answer}</div></div>"
    )
    if found.pictures:
        result.image(to_png(pictures.sheet(found, cut), dpi=90), f"pictures at {cut.budget}")
    _tokens(result, found, cut)
    for picture in found.pictures:
        for draw, what in ((pictures.by_layer, "layer"), (pictures.by_head, "head")):
            png = to_png(draw(found, cut, picture), dpi=70)
            result.image(png, f"{picture.name} at {cut.budget}, by {what}")
    result.raw("</section>")


def _tokens(result: Page, found: Explanation, cut: Cut) -> None:
    """The text, darker where more heads kept it; pictures as one mark."""
    share = pictures.kept_share(cut)
    parts: list[str] = []
    shown: set[int] = set()
    for value, token in zip(share, found.tokens, strict=True):
        if token.picture is None:
            colour = f"rgba(0,114,178,{0.75 * value:.3f})"
            ink = "#fff" if value > 0.7 else "#1b1b1b"
            text = escape(token.text.replace("\n", "\u21b5\n"))
            parts.append(
                f'<span style="background:{colour};color:{ink}" '
                f'title="kept by {value:.0%} of the heads">{text}</span>'
            )
        elif token.picture not in shown:
            shown.add(token.picture)
            parts.append(f"<b>[picture {token.picture + 1}]</b>")
    result.raw(f'<p class="tokens">{"".join(parts)}</p>')


def _head_table(result: Page, found: Explanation) -> None:
    """Redundancy by layer, mean over the KV heads."""
    result.heading("Redundancy of the heads")
    parts = found.parts
    shown = (parts.r_cos, parts.r_euc, parts.weight)
    rows = [
        [str(layer), *(f"{values[layer].mean():.3f}" for values in shown)]
        for layer in range(len(parts.weight))
    ]
    result.table(["layer", "r_cos", "r_euc", "weight of diversity"], rows, text_columns=0)


def save(found: Explanation, folder: str | Path) -> list[Path]:
    """Write the page and the pictures, and remove those of an earlier prompt with more of them;
    returns their paths. Raises EcokvError.
    """
    folder = Path(folder)
    pages = [folder / "explain.html"]
    page(found).save(pages[0])
    drawn = {}
    if found.pictures:
        drawn["overview.png"] = pictures.overview(found)
    middle = found.cuts[len(found.cuts) // 2]
    for i, picture in enumerate(found.pictures, 1):
        drawn[f"picture-{i}-maps.png"] = pictures.maps(found, picture)
        drawn[f"picture-{i}-layers.png"] = pictures.by_layer(found, middle, picture)
        drawn[f"picture-{i}-heads.png"] = pictures.by_head(found, middle, picture)
    for name, figure in drawn.items():
        write(folder / name, to_png(figure))
    for old in folder.iterdir():
        if _DRAWN.fullmatch(old.name) and old.name not in drawn:
            old.unlink()
    return [*pages, *(folder / name for name in drawn)]
