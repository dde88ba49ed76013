"""Metrics, statistics and tables on scores that are known."""

from __future__ import annotations

import numpy as np
import pytest

from ecokv_local.budget import Budget
from ecokv_local.errors import BudgetError, UsageError
from ecokv_local.evaluate import statistics
from ecokv_local.evaluate.branches import Reply
from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.metrics import levenshtein, score
from ecokv_local.evaluate.run import Result
from ecokv_local.evaluate.suite import pick
from ecokv_local.evaluate.table import cells, markdown, rows
from ecokv_local.evaluate.variants import Policy, grid, pairs_for


@pytest.mark.parametrize(
    ("metric", "said", "answers", "value"),
    [
        ("exact", "The Red.", ["red"], 1),
        ("exact", "dark red", ["red"], 0),
        ("exact", "42", ["41", "42"], 1),
        ("contains", "The code is 4821.", ["4821"], 1),
        ("contains", "The code is 48213.", ["4821"], 0),
        ("contains", "a redder one", ["red"], 0),
        ("anls", "hello", ["hallo"], 0.8),
        ("anls", "hello", ["world"], 0),
        ("relaxed", "about 104 %", ["100"], 1),
        ("relaxed", "106", ["100"], 0),
        ("relaxed", "1,040", ["1000"], 1),
        ("relaxed", "Paris", ["paris"], 1),
        ("relaxed", "104 of 110", ["100"], 0),
        ("choice", "(B) the second", ["B"], 1),
        ("choice", "Both", ["B"], 0),
    ],
)
def test_scores(metric: str, said: str, answers: list[str], value: float) -> None:
    assert score(metric, said, answers) == pytest.approx(value)


def test_edits() -> None:
    assert levenshtein("kitten", "sitting") == 3
    assert levenshtein("", "abc") == 3 and levenshtein("abc", "abc") == 0


def test_an_unknown_metric() -> None:
    with pytest.raises(UsageError, match="bleu"):
        score("bleu", "a", ["a"])


def test_the_paired_test_counts_what_differs() -> None:
    ours, theirs = np.array([1.0] * 9 + [0.0]), np.array([0.0] * 6 + [1.0] * 4)
    gained, lost, p = statistics.mcnemar(ours, theirs)
    assert (gained, lost) == (6, 1)
    assert p == pytest.approx(2 * (1 + 7) / 2**7)  # 6 or 7 of 7 heads, both sides
    assert statistics.mcnemar(ours, ours) == (0, 0, 1.0)


def test_intervals_hold_the_mean_and_are_the_same_again() -> None:
    scores = np.random.default_rng(1).integers(0, 2, 200).astype(float)
    low, high = statistics.mean_interval(scores)
    assert low < scores.mean() < high and high - low == pytest.approx(0.138, abs=0.02)
    assert statistics.mean_interval(scores) == (low, high)
    assert statistics.retention_interval(scores, scores) == (1.0, 1.0)
    assert statistics.difference_interval(scores, scores) == (0.0, 0.0)
    assert statistics.mean_interval(np.ones(5)) == (1.0, 1.0)


@pytest.mark.parametrize(
    "text",
    ["nothing", "none", "snapkv:window", "snapkv:colour=3", "snapkv:window=x", "mixkv:lam=2"],
)
def test_policies_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError):
        Policy.parse(text)


def test_a_policy_with_settings() -> None:
    policy = Policy.parse("snapkv:window=32:sinks=4")
    assert (policy.config.window, policy.config.n_sinks) == (32, 4)
    with pytest.raises(UsageError, match="twice"):
        grid([policy, policy], [Budget.parse("10%")], ["after"])


def test_all_policies_keep_the_same_number() -> None:
    policies = [Policy.parse("ecokv"), Policy.parse("knorm"), Policy.parse("snapkv:recent=30")]
    assert pairs_for(Budget.parse("5%"), policies[:2], 100, 1) == 13  # 4 sinks, 8 recent, one more
    assert pairs_for(Budget.parse("5%"), policies, 100, 1) == 31
    assert pairs_for(Budget.parse("5%"), policies[1:2], 100, 1) == 13
    assert pairs_for(Budget.parse("50%"), policies, 20, 1) == 20
    with pytest.raises(BudgetError, match="12"):
        pairs_for(Budget.parse(12), policies, 100, 1)


# ---- tables

VARIANTS = grid(
    [Policy.parse("ecokv"), Policy.parse("random")],
    [Budget.parse(b) for b in ("10%", "20%", "50%")],
    ["after"],
)


def made(right: dict[str, int], n: int = 20) -> list[Result]:
    """Of ``n`` items every variant has the first ones right."""
    results = []
    for i in range(n):
        item = Item("colors", "even" if i % 2 else "odd", str(i), "?", ("yes",))
        replies = {v.label: Reply("yes", 10, 100) for v in VARIANTS}
        scores = {v.label: float(i < right.get(v.label, n)) for v in VARIANTS}
        for v in VARIANTS:
            kept = 100.0 if v.budget is None else v.budget.value
            replies[v.label] = Reply("yes", int(kept), 100)
        results.append(Result(item, replies, scores))
    return results


def test_rows_against_a_baseline() -> None:
    results = made({"random@10%/after": 5, "ecokv@10%/after": 15})
    found = rows(results, VARIANTS, cache="f16/f16", baseline="ecokv", by_kind=True)
    assert len(found) == 3 * len(VARIANTS)  # all, even, odd
    row = next(r for r in found if (r.policy, r.budget, r.kind) == ("random", "10%", "all"))
    assert (row.accuracy, row.retention, row.n, row.kept) == (0.25, 0.25, 20, 10)
    assert (row.difference, row.gained, row.lost) == (-0.5, 0, 10)
    assert row.p_value == pytest.approx(2 / 2**10)
    base = next(r for r in found if (r.policy, r.budget, r.kind) == ("ecokv", "10%", "all"))
    assert base.difference is None
    assert "25.0%" in cells(row, against=True) and "-50.0%" in markdown(found, against=True)


def test_retention_of_another_full_cache() -> None:
    results = made({"full": 10, "ecokv@10%/after": 10})
    other = {r.item.key: 1.0 for r in results}
    found = rows(results, VARIANTS, cache="q8_0/q8_0", baseline="", full=other)
    assert next(r for r in found if r.policy == "full").retention == 0.5


def test_the_smallest_budget_that_keeps_enough() -> None:
    def picked(right: dict[str, int], target: float) -> str | None:
        found = rows(made(right), VARIANTS[:4], cache="f16/f16", baseline="")
        row = pick(found, target)["colors"]
        return None if row is None else row.budget

    assert picked({"ecokv@10%/after": 10}, 0.99) == "20%"
    assert picked({"ecokv@10%/after": 10}, 0.5) == "10%"
    assert picked({"ecokv@20%/after": 10}, 0.99) == "50%"  # 10 % was luck
    assert picked({"ecokv@50%/after": 10}, 0.99) is None
