"""Constrained captions: a JSON schema, or a grammar of llama.cpp, as GBNF."""

from __future__ import annotations

import json
from typing import Any

from ecokv_local.errors import UsageError


def grammar_of_schema(text: str, name: str) -> str:
    """GBNF of a JSON schema, by llama.cpp's converter.

    Raises UsageError for what is not a schema, or one that cannot be expressed.
    """
    try:
        schema = json.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise UsageError(f"{name}: not JSON ({error})", hint=_LIKE) from None
    if not isinstance(schema, dict):
        raise UsageError(f"{name}: a schema is an object", hint=_LIKE)
    convert = _converter()
    try:
        return str(convert(json.dumps(schema)))
    except Exception as error:  # whatever it meets in a schema
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(
            f"{name}: this schema cannot become a grammar ({reason})",
            hint="leave out what constrains values, or write a grammar and give it with --grammar",
        ) from None


def _converter() -> Any:
    from ecokv_local import native  # noqa: F401 - decides which libraries llama_cpp loads

    from llama_cpp.llama_grammar import json_schema_to_gbnf  # isort: skip

    return json_schema_to_gbnf


_LIKE = 'for example {"type": "object", "properties": {"objects": {"type": "array"}}}'
