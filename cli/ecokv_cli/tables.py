"""Tables: Rich on a terminal, aligned plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from ecokv_cli.output import is_terminal, visible

Rows = Sequence[Sequence[str]]


def show(
    title: str,
    header: Sequence[str],
    rows: Rows,
    *,
    text_columns: int = 1,
    stream: TextIO | None = None,
) -> None:
    """Print a table, to standard output if no stream is named. The first ``text_columns`` are
    aligned to the left, the others are numbers.
    """
    stream = stream or sys.stdout
    if is_terminal(stream):
        _rich(title, header, rows, text_columns, stream)
    else:
        print("\n".join([title, *plain(header, rows, text_columns), ""]), file=stream)


def plain(header: Sequence[str], rows: Rows, text_columns: int = 1) -> list[str]:
    """Lines of a table, columns aligned by spaces."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _rich(title: str, header: Sequence[str], rows: Rows, text_columns: int, stream: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(visible(title)), title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(header):
        left = i < text_columns
        table.add_column(Text(name), justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))  # never parsed as markup
    Console(file=stream, highlight=False, markup=False, emoji=False).print(table)
