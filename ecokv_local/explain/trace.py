"""Every row of every head at every budget, one JSON object a line: for scripts that compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ecokv_local.explain.reading import Cut, Explanation
from ecokv_local.report.figure import write

_FEATURES = ("attn", "key_norm", "key_cos", "key_euc", "value_norm")
_DIGITS = 7
_AT_ONCE = 4096  # lines


def lines(found: Explanation) -> Iterator[dict[str, Any]]:
    """By budget, layer, head and cell. Numbers have seven significant digits."""
    for cut in found.cuts:
        n_layer, n_head, n_rows = cut.kept.shape
        for layer in range(n_layer):
            for head in range(n_head):
                for cell in range(n_rows):
                    yield _line(found, cut, layer, head, cell)


def _line(found: Explanation, cut: Cut, layer: int, head: int, cell: int) -> dict[str, Any]:
    token, at = found.tokens[cell], (layer, head, cell)
    line: dict[str, Any] = {"budget": cut.budget, "layer": layer, "head": head, "cell": cell}
    line["position"] = int(found.positions[cell])
    if token.picture is None:
        line["token"] = token.text
    else:
        line |= {"picture": token.picture, "patch": token.patch}
    line |= {name: _number(found.features[name][at]) for name in _FEATURES}
    return line | {"score": _number(cut.scores[at]), "kept": bool(cut.kept[at])}


def _number(value: Any) -> float | None:
    """JSON knows no infinity: sinks and recents have none."""
    number = float(f"{float(value):.{_DIGITS}g}")
    return number if abs(number) < float("inf") else None


def save(found: Explanation, path: str | Path) -> None:
    """Write the trace; an old file is replaced whole or stays. Raises EcokvError."""
    write(path, _pieces(found))


def _pieces(found: Explanation) -> Iterator[bytes]:
    rows = lines(found)
    while piece := list(islice(rows, _AT_ONCE)):
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in piece)
        yield text.encode("utf-8")
