"""Rows as Markdown, CSV, JSON and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields

from ecokv_local.bench.plan import Row

HEADER = (
    "cache", "policy", "budget", "depth", "kept", "prefill t/s", "evict ms", "decode t/s", "KV MiB",
    "KV/full", "decode/full", "decode/short", "decode/stock",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """A row as text, under ``HEADER``."""
    evict = row.features_ms + row.plan_ms + row.apply_ms
    return [
        row.cache,
        row.policy,
        row.budget,
        str(row.depth),
        str(row.n_kept),
        f"{row.prefill_tokens_per_s:.1f}",
        f"{evict:.1f}" if evict else "",
        f"{row.decode_tokens_per_s:.2f} ± {row.decode_sd:.2f}",
        f"{row.kv_bytes / 2**20:.2f}" if row.kv_bytes else "",
        *(
            "" if ratio is None else f"{ratio:.3f}"
            for ratio in (
                row.kv_ratio if row.kv_bytes else None,
                row.decode_over_full,
                row.decode_over_short,
                row.decode_over_stock,
            )
        ),
    ]


def markdown(found: Sequence[Row]) -> str:
    """A table for documents, columns aligned."""
    lines = [list(HEADER), *(cells(row) for row in found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [_line(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([text[0], _line("-" * (w - 1) + ":" for w in widths), *text[1:]])


def _line(found: Iterable[str]) -> str:
    return f"| {' | '.join(found)} |"


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
