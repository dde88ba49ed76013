"""Rows as Markdown, CSV, JSON and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields

from ecokv_local.bench.rows import Row

#: Titles of the table, and the text that a row has under each; empty where there is nothing to say.
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "cache": lambda row: row.cache,
    "policy": lambda row: row.policy,
    "budget": lambda row: row.budget,
    "depth": lambda row: str(row.depth),
    "kept": lambda row: str(row.n_kept),
    "prefill t/s": lambda row: _number(row.prefill_tokens_per_s, 1),
    "evict ms (features + plan + apply)": lambda row: _evict(row),
    "decode t/s": lambda row: f"{row.decode_tokens_per_s:.2f} ± {row.decode_sd_tokens_per_s:.2f}",
    "KV MiB": lambda row: _mib(row.kv_bytes, 2),
    "RSS MiB": lambda row: _mib(row.resident_bytes, 0),
    "peak RSS MiB": lambda row: _mib(row.peak_resident_bytes, 0),
    "KV/full": lambda row: _number(row.kv_over_full, 3),
    "decode/full": lambda row: _number(row.decode_over_full, 3),
    "decode/short": lambda row: _number(row.decode_over_short, 3),
    "decode/stock": lambda row: _number(row.decode_over_stock, 3),
    "prefill/stock": lambda row: _number(row.prefill_over_stock, 3),
}
#: The first of them are words, the others numbers.
TEXT_COLUMNS = 3


def table(found: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Titles and lines of a table; columns that say nothing are left out."""
    lines = {title: [text(row) for row in found] for title, text in _COLUMNS.items()}
    titles = [title for title, column in lines.items() if not found or any(column)]
    return titles, [list(line) for line in zip(*(lines[t] for t in titles), strict=True)]


def markdown(found: Sequence[Row]) -> str:
    """A table for documents, columns aligned."""
    titles, lines = table(found)
    texts = [titles, *([_escaped(cell) for cell in line] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    rule = [
        "-" * width if i < TEXT_COLUMNS else "-" * (width - 1) + ":"
        for i, width in enumerate(widths)
    ]
    body = [
        _line(
            cell.ljust(width) if i < TEXT_COLUMNS else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in texts
    ]
    return "\n".join([body[0], _line(rule), *body[1:]])


def as_csv(found: Sequence[Row]) -> str:
    """With a header; empty where there is nothing to compare with."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.to_dict() for row in found)
    return out.getvalue().rstrip("\n")


def as_json(found: Sequence[Row]) -> str:
    """One array."""
    return json.dumps([row.to_dict() for row in found], indent=2)


def as_jsonl(found: Sequence[Row]) -> str:
    """One object a line."""
    return "\n".join(json.dumps(row.to_dict()) for row in found)


FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {
    "md": markdown,
    "csv": as_csv,
    "json": as_json,
    "jsonl": as_jsonl,
}


def _evict(row: Row) -> str:
    if row.note or not row.evict_ms:
        return row.note
    parts = " + ".join(f"{ms:.1f}" for ms in (row.features_ms, row.plan_ms, row.apply_ms))
    return f"{row.evict_ms:.1f} ± {row.evict_sd_ms:.1f} ({parts})"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _mib(value: int | None, digits: int) -> str:
    return f"{value / 2**20:.{digits}f}" if value else ""


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _line(found: Iterable[str]) -> str:
    return f"| {' | '.join(found)} |"
