"""Images that keep a floor and texts that stay whole: the rule, and the native plan against it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import decode_all, random_tokens

from ecokv_local import EvictionConfig, inspection
from ecokv_local.config import POLICIES
from ecokv_local.context import Context
from ecokv_local.errors import BudgetError, UsageError
from ecokv_local.groups import Group, Span
from ecokv_local.reference import scores
from ecokv_local.reference.groups import capped, select_groups
from ecokv_local.reference.measure import Features

CONFIGS = [EvictionConfig(name) for name in POLICIES if name != "none"]
EVEN = [config for config in CONFIGS if not (config.pyramid or config.ada)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any, list[Group], int]:
    """Scores ``[2, n]``, true positions with gaps, groups, and a budget."""
    config = EvictionConfig()
    n = draw(st.integers(14, 90))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    score = np.round(rng.normal(size=(2, n)), draw(st.integers(0, 3))).astype(np.float32)
    score[:, 4:-8][rng.random((2, n - 12)) < draw(st.sampled_from([0.0, 0.2]))] = -np.inf
    score[:, :4] = score[:, -8:] = np.inf
    positions = np.sort(np.stack([rng.choice(2 * n, n, replace=False) for _ in range(2)]))
    cuts = sorted(draw(st.sets(st.integers(0, 2 * n), max_size=9)))
    groups = [
        Group(a, b, draw(st.integers(0, n))) for a, b in pairwise(cuts) if draw(st.booleans())
    ]
    return score, positions, groups, draw(st.integers(config.budget_min(), n))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_every_group_keeps_its_floor_and_the_rest_is_the_best(case: Any) -> None:
    score, positions, groups, budget = case
    config = EvictionConfig()
    if any((g.floor or 0) > budget - 12 for g in groups):
        groups = [Group(g.start, g.end, min(g.floor or 0, budget - 12)) for g in groups]
    kept = select_groups(score, positions, groups, budget, config)
    plain = select_groups(score, positions, [], budget, config)
    for head, ranks in enumerate(kept):
        assert len(ranks) == min(budget, score.shape[1]) and (np.diff(ranks) > 0).all()
        assert {*range(4), *range(score.shape[1] - 8, score.shape[1])} <= set(ranks.tolist())
        inside = [(positions[head] >= g.start) & (positions[head] < g.end) for g in groups]
        finite = ~np.isneginf(score[head])
        # floors as they would be with all the room there is: never below one while they fit
        some = [g for g, rows in zip(groups, inside, strict=True) if g.floor and finite[rows].any()]
        if len(some) <= budget - 12:
            for group, rows in zip(groups, inside, strict=True):
                if group in some:
                    assert np.intersect1d(ranks, np.flatnonzero(rows)).size >= 1
        # without groups: the plain choice
        if not some:
            np.testing.assert_array_equal(ranks, plain[head])
        # within a group nothing goes that is better than what stays
        for rows in inside:
            stayed = np.intersect1d(ranks, np.flatnonzero(rows & finite))
            gone = np.setdiff1d(np.flatnonzero(rows & finite), ranks)
            if len(stayed) and len(gone):
                assert score[head][gone].max() <= score[head][stayed].min()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=8), st.integers(0, 60))
def test_floors_shrink_together_to_a_common_cap(floors: list[int], room: int) -> None:
    fitted = capped(floors, room)
    assert sum(fitted) <= room and all(a <= b for a, b in zip(fitted, floors, strict=True))
    if sum(floors) <= room:
        assert fitted == floors
    elif sum(f > 0 for f in floors) <= room:
        cap = max(fitted)
        assert fitted == [min(f, cap) for f in floors]
        assert sum(min(f, cap + 1) for f in floors) > room
    else:
        assert sum(fitted) == room and fitted == [
            int(f > 0 and sum(g > 0 for g in floors[i + 1 :]) < room) for i, f in enumerate(floors)
        ]


@pytest.fixture
def filled(tiny_llama_path: Path, open_context: Callable[..., Context]) -> Context:
    context = open_context(tiny_llama_path)
    context.enable(8)
    decode_all(context, random_tokens(301, context.n_vocab))
    return context


def _arrays(context: Context, config: EvictionConfig) -> dict[str, Any]:
    arrays = inspection.features(context, sinks=config.n_sinks, recent=config.n_recent)
    return arrays | {"pos": inspection.kept(context)}


def _expected(
    arrays: Any, config: EvictionConfig, groups: list[Group], budget: int, il: int
) -> Any:
    same = Features(
        config.n_sinks,
        arrays["attn"].shape[-1] - config.n_recent,
        np.isfinite(arrays["key_norm"][il]),
        *(arrays[n][il].astype(np.float64) for n in (*inspection.FEATURES, "head_m2")),
    )
    found = scores(config.policy, same, config, layer=il, budget=budget)
    return select_groups(found, arrays["pos"][il], groups, budget, config)


GROUPS = [
    [Group(20, 60, 8), Group(60, 110, 15), Group(150, 250, 3)],
    [Group(0, 10, None), Group(50, 150, 9), Group(290, 301, None)],
    [Group(12 + 5 * i, 17 + 5 * i, 5) for i in range(50)],  # more than fit
    [Group(12, 280, 10), Group(400, 500, 9), Group(500, 500, None)],  # one has no rows yet
]


@pytest.mark.parametrize("config", EVEN, ids=lambda c: c.policy)
def test_native_kept_sets_equal_the_reference_again_after_an_eviction(
    config: EvictionConfig, filled: Context
) -> None:
    context = filled
    for round_ in range(2):  # the second time, positions differ between heads
        arrays = _arrays(context, config)
        for groups in GROUPS:
            for budget in (44, 64, 130):
                kept = inspection.plan(arrays, config, budget, groups)
                for il in range(len(kept)):
                    expected = _expected(arrays, config, groups, budget, il)
                    np.testing.assert_array_equal(kept[il], expected, f"layer {il}, {groups}")
        context.evict(config, 150)
        decode_all(context, random_tokens(40, context.n_vocab, seed=round_))


def test_an_eviction_goes_by_the_spans_of_its_sequence(filled: Context) -> None:
    config = EvictionConfig("snapkv", image_budget=10, protect="system,question")
    filled.spans = (
        Span("system", 0, 9, 9),
        *(Span("image", p, p + 30, 30) for p in (20, 60, 100)),
        Span("question", 280, 290, 10),
    )
    chosen = inspection.choose(filled, config, 64)
    before = inspection.kept(filled)
    filled.evict(config, 64)
    kept = inspection.kept(filled)
    np.testing.assert_array_equal(kept, np.take_along_axis(before, chosen, axis=-1))
    for head in kept.reshape(-1, 64):
        assert {*range(9), *range(280, 290), *range(293, 301)} <= set(head.tolist())
        for p in (20, 60, 100):
            assert ((head >= p) & (head < p + 30)).sum() >= 10


def test_what_does_not_fit_is_refused_and_nothing_moves(filled: Context) -> None:
    filled.spans = (Span("question", 200, 290, 90),)
    rows = inspection.rows(filled, 0, value=False)
    with pytest.raises(BudgetError, match=r"budget of 64 .* protected: 102"):
        filled.evict(EvictionConfig(protect="question"), 64)
    filled.spans = (Span("image", 100, 190, 90),)
    with pytest.raises(BudgetError, match="one image alone"):
        filled.evict(EvictionConfig(image_budget="100%"), 64)
    np.testing.assert_array_equal(inspection.rows(filled, 0, value=False), rows)
    filled.evict(EvictionConfig(image_budget=40), 64)
    assert filled.n_rows == 64


@pytest.mark.parametrize(
    "groups", [[Group(9, 5, 1)], [Group(0, 9, 1), Group(5, 12, 1)], [Group(-1, 5, None)]]
)
def test_groups_that_overlap_or_run_backwards_are_refused(
    groups: list[Group], filled: Context
) -> None:
    config = EvictionConfig()
    with pytest.raises(UsageError, match="ascending and apart"):
        inspection.plan(_arrays(filled, config), config, 64, groups)


def test_groups_without_positions_are_refused(filled: Context) -> None:
    arrays = inspection.features(filled, sinks=4, recent=8)
    with pytest.raises(UsageError, match="true positions"):
        inspection.plan(arrays, EvictionConfig(), 64, GROUPS[0])


def test_uneven_budgets_are_refused(filled: Context) -> None:
    for values in ({"policy": "pyramid"}, {"head_budgets": "ada"}):
        with pytest.raises(UsageError, match="same in all layers"):
            EvictionConfig(**values, image_budget=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="same in all layers"):
        config = EvictionConfig("ada")
        inspection.plan(_arrays(filled, config), config, 64, GROUPS[0])


@pytest.mark.parametrize("value", ["0", "0%", "101%", "1MiB", "0.5", "x", "-3"])
def test_bad_image_budgets(value: str) -> None:
    with pytest.raises(UsageError, match="image-budget"):
        EvictionConfig(image_budget=value)


def test_names_of_texts() -> None:
    assert EvictionConfig(protect="question, system").protect == ("system", "question")
    assert EvictionConfig(protect="none").protect == ()
    with pytest.raises(UsageError, match="protect 'all' does not exist"):
        EvictionConfig(protect="all")
