"""Settings of `ecokv eval` alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ecokv_cli import values
from ecokv_cli.setting import Setting, group, switch


def listed(parse: values.Parser) -> Callable[[str], list[Any]]:
    """A parser of values with commas between them."""

    def parse_all(value: str) -> list[Any]:
        parts = [part.strip() for part in value.split(",")]
        if not all(parts):
            raise values.BadValue(f"{value!r} has an empty place", "write for example a,b,c")
        return [parse(part) for part in parts]

    return parse_all


def _policy(value: str) -> Any:
    from ecokv_local.evaluate.variants import Policy

    return Policy.parse(value)


def _task(value: str) -> tuple[str, int | None]:
    """`scenes` or `scenes=200`."""
    name, equals, count = value.partition("=")
    if not equals:
        return name, None
    return name, int(values.integer(1, like="scenes=200")(count))


def _cache_type(value: str) -> tuple[str, str]:
    """`q8_0`, or K and V apart: `q8_0/q4_0`."""
    key, slash, value_type = value.partition("/")
    parse = values.choice(*values.CACHE_TYPES)
    return parse(key), parse(value_type if slash else key)


def _percent(value: str) -> float:
    number = value.strip().removesuffix("%")
    if number == value.strip():
        raise values.BadValue(f"{value!r} is no percentage", "write for example 99%")
    return float(values.number(0, 1000, like="99%")(number)) / 100


EVAL = group(
    "Evaluation",
    Setting(
        "tasks",
        ("--tasks",),
        "LIST",
        "Test sets that are made: scenes, needle, text; a count as scenes=200 "
        "[50 of each that the model can do].",
        listed(_task),
    ),
    Setting(
        "policies",
        ("--policies",),
        "LIST",
        "Policies, with settings behind colons: ecokv,snapkv:window=32 [ecokv,streaming].",
        listed(_policy),
    ),
    Setting(
        "budgets",
        ("--budgets",),
        "LIST",
        "Budgets: 64,25%,2MiB [5%,10%,20%,50%].",
        listed(values.budget),
    ),
    Setting(
        "query_aware",
        ("--query-aware",),
        "yes|no|both",
        "Evict after the question was read, before it, or compare both [yes].",
        values.choice("yes", "no", "both"),
    ),
    switch(
        "as_chat",
        ("--as-chat",),
        "--strict",
        "The first token of an answer is chosen before the eviction, as in chat; strict: every "
        "token comes from what stayed [strict].",
    ),
    Setting(
        "cache_types",
        ("--cache-types",),
        "LIST",
        "Types of the cache: f16,q8_0, or K and V apart: q8_0/q4_0 [f16].",
        listed(_cache_type),
    ),
    switch(
        "equal_bytes",
        ("--equal-bytes",),
        "--equal-pairs",
        "Budgets are percent of the bytes of the full f16 cache, whatever the type.",
    ),
    Setting(
        "baseline",
        ("--baseline",),
        "POLICY",
        "Policy of the list that the others are tested against [the first].",
        values.text,
    ),
    Setting(
        "pick",
        ("--pick",),
        "N%",
        "Only find the smallest budget of the first policy that keeps this much of the score of "
        "the full cache.",
        _percent,
    ),
    Setting(
        "split",
        ("--split",),
        "test|validation",
        "Which made items: validation to choose settings, test to report [test].",
        values.choice("test", "validation"),
    ),
)

EXPLAIN_OWN = group(
    "Output",
    Setting(
        "trace",
        ("--trace",),
        "FILE.jsonl",
        "Every row of every head: features, score, and whether it stayed.",
        values.path,
        is_path=True,
    ),
)

ANALYZE_OWN = group(
    "Analysis",
    Setting(
        "prompts",
        ("--prompts",),
        "N",
        "How many made prompts, where none is given [8].",
        values.integer(1, 10000, like="8"),
    ),
)
