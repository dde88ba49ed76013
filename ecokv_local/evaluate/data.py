"""The user's own test set: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ecokv_local.errors import EcokvError, UsageError
from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.metrics import METRICS
from ecokv_local.identity import file_identity

_FIELDS = {
    "image",
    "images",
    "question",
    "answer",
    "answers",
    "metric",
    "text",
    "max_tokens",
    "kind",
    "id",
}
_EXAMPLE = '{"image": "a.png", "question": "What color is the car?", "answers": ["red"]}'


def load_items(path: str | Path) -> list[Item]:
    """Items of a JSONL file: ``image`` or ``images`` (relative to the file), ``question``,
    ``answer`` or ``answers``, and as they please ``metric`` (exact), ``text`` that stands before
    the question, ``max_tokens``, ``kind`` to group by, and ``id``.

    Raises EcokvError if the file cannot be read and UsageError, with the line, for anything in it
    that is not understood. Pictures are read later.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise EcokvError(f"{path}: {error.strerror or error}", hint="give a JSONL file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from error
    items = [
        _item(path, number, line) for number, line in enumerate(lines, 1) if line and line.strip()
    ]
    if not items:
        raise UsageError(f"{path}: there is no item in it", hint=f"one a line: {_EXAMPLE}")
    return items


def _item(path: Path, number: int, line: str) -> Item:
    where = f"{path}:{number}"
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}", hint=f"for example {_EXAMPLE}") from None
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: not an object", hint=f"for example {_EXAMPLE}")
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        raise UsageError(
            f"{where}: unknown field {unknown[0]!r}", hint=f"known: {', '.join(sorted(_FIELDS))}"
        )
    images = [path.parent / name for name in _texts(where, entry, "image", "images", least=0)]
    metric = _text(where, entry, "metric", "exact")
    if metric not in METRICS:
        raise UsageError(
            f"{where}: metric {metric!r} does not exist", hint=f"choose from {', '.join(METRICS)}"
        )
    max_tokens = entry.get("max_tokens", 64)
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise UsageError(f"{where}: max_tokens {max_tokens!r}: a number from 1 on is needed")
    return Item(
        path.stem,
        _text(where, entry, "kind", "question"),
        f"{_text(where, entry, 'id', '')} line {number}".strip(),
        _text(where, entry, "question"),
        tuple(_texts(where, entry, "answer", "answers", least=1)),
        text=_text(where, entry, "text", ""),
        metric=metric,
        images=partial(tuple, images),
        content=json.dumps([_identity(image) for image in images]),
        max_tokens=max_tokens,
    )


def _text(where: str, entry: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = entry.get(name, default)
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise UsageError(f"{where}: {name} {value!r}: a text is needed", hint=_EXAMPLE)
    return value


def _texts(where: str, entry: Mapping[str, Any], one: str, many: str, *, least: int) -> list[str]:
    """One text, or a list of them under the other name."""
    if one in entry and many in entry:
        raise UsageError(f"{where}: {one} and {many}", hint="leave one of them out")
    value = entry.get(many, entry.get(one, []))
    values = value if isinstance(value, list) else [value]
    number = (int, float)
    values = [str(v) if isinstance(v, number) and not isinstance(v, bool) else v for v in values]
    if len(values) < least or not all(isinstance(v, str) and v for v in values):
        raise UsageError(f"{where}: {many} {value!r}: texts are needed", hint=_EXAMPLE)
    return values


def _identity(image: Path) -> str:
    """Of the content of a picture; a picture that cannot be read is told when it is needed."""
    try:
        return str(file_identity(image)["sha256"])
    except OSError:
        return f"missing {image}"
