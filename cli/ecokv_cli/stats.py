"""Statistics of an answer and of a session, as lines for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def of_answer(data: Mapping[str, Any]) -> str:
    """What ran for one answer, from its record; `-` for what was not measured."""
    prompt = f"{_count(data['n_prompt'])} tokens"
    if data["n_image_tokens"]:
        prompt += f", {_count(data['n_image_tokens'])} of them pictures"
    cache = f"{_count(data['n_kept'])} kept, {_count(data['n_evicted'])} evicted"
    cache += " (KV pairs per layer and head)"
    times = ", ".join(
        f"{label} {_milliseconds(data[key])}"
        for label, key in (
            ("encode", "t_encode_ms"),
            ("prefill", "t_prefill_ms"),
            ("evict", "t_evict_ms"),
            ("decode", "t_decode_ms"),
        )
    )
    rows = {
        "model": str(data["model"]),
        "projector": str(data["mmproj"] or "none"),
        "prompt": prompt,
        "budget": f"{data['budget'] or 'none'}, policy {data['policy']}",
        "cache": cache,
        "memory": f"{_bytes(data['kv_bytes'])} of KV, peak {_bytes(data['kv_bytes_peak'])}",
        "time": times,
        "speed": "-" if not data["tokens_per_s"] else f"{data['tokens_per_s']:.1f} tokens/s",
        "end": str(data["finish_reason"]) + (", prompt truncated" if data["truncated"] else ""),
    }
    return table(rows)


def table(rows: Mapping[str, Any], indent: str = "  ") -> str:
    """Two aligned columns; a nested mapping is indented below its name."""
    width = max((len(str(key)) for key in rows), default=0)
    lines = []
    for key, value in rows.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}", table(value, indent + "  ")]
        elif _is_rows(value):
            lines += [f"{indent}{key}", *(f"{indent}  {line}" for line in _columns(value))]
        else:
            lines.append(f"{indent}{str(key).ljust(width)}  {_cell(value)}")
    return "\n".join(lines)


def _is_rows(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(isinstance(item, Mapping) for item in value)
    )


def _columns(rows: list[Mapping[str, Any]]) -> list[str]:
    """Rows under a header. The first column numbers them: neighbours that are equal become one."""
    first, *others = rows[0]
    cells = [[str(first), *map(str, others)]]
    start = 0
    for end in range(1, len(rows) + 1):
        same = end < len(rows) and all(rows[end][name] == rows[start][name] for name in others)
        if not same:
            low, high = rows[start][first], rows[end - 1][first]
            label = str(low) if low == high else f"{low}-{high}"
            cells.append([label, *(_cell(rows[start][name]) for name in others)])
            start = end
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item) for item in value) or "-"
    return "-" if value is None else str(value)


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.1f} ms"


def _bytes(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value / 2**20:.1f} MiB" if value >= 2**20 else f"{value / 2**10:.1f} KiB"
