"""One HTML file that opens offline: text, tables and figures, nothing fetched, nothing parsed."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ecokv_local.report.figure import to_svg, write

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;
color:#1b1b1b;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:1rem 0;display:block;
overflow-x:auto}
th,td{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}
th{border-bottom:2px solid #999}th.t,td.t{text-align:left}
svg,img{max-width:100%;height:auto}
p.note{color:#555;font-size:.9em}
"""


class Page:
    """A page that is built from top to bottom. All text is escaped; only ``raw`` is taken as is."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = [f"<h1>{escape(title)}</h1>"]
        self._style: list[str] = [_STYLE]
        self._script: list[str] = []

    def heading(self, text: str) -> None:
        """A heading of a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str, *, note: bool = False) -> None:
        """A paragraph; a note is smaller."""
        self._parts.append(f"<p{' class=note' if note else ''}>{escape(text)}</p>")

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1
    ) -> None:
        """A table; the first ``text_columns`` are aligned to the left."""

        def line(cells: Sequence[str], tag: str) -> str:
            return "".join(
                f"<{tag}{' class=t' if i < text_columns else ''}>{escape(cell)}</{tag}>"
                for i, cell in enumerate(cells)
            )

        body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
        head = f"<thead><tr>{line(header, 'th')}</tr></thead>"
        self._parts.append(f"<table>{head}<tbody>{body}</tbody></table>")

    def figure(self, figure: Any) -> None:
        """A matplotlib figure, as SVG."""
        self._parts.append(f"<div>{to_svg(figure)}</div>")

    def image(self, png: bytes, alt: str) -> None:
        """A PNG picture."""
        data = base64.b64encode(png).decode()
        self._parts.append(f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}">')

    def raw(self, html: str) -> None:
        """Markup of our own making; never text of users or models."""
        self._parts.append(html)

    def style(self, css: str) -> None:
        """Rules of our own making."""
        self._style.append(css)

    def script(self, code: str) -> None:
        """A script of our own making, run when the page is there."""
        self._script.append(code)

    def html(self) -> str:
        """The whole page."""
        scripts = "".join(f"<script>{code}</script>" for code in self._script)
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{''.join(self._style)}</style></head>"
            f"<body>{''.join(self._parts)}{scripts}</body></html>\n"
        )

    def save(self, path: str | Path) -> None:
        """Write the page; an old file is replaced whole or stays. Raises EcokvError."""
        write(path, self.html().encode("utf-8"))
