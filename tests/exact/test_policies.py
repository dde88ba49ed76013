"""Policies x cache types x flash attention x models: kept sets end to end, and what comes after.

The reference starts from the raw rows and the ring's queries, the native code from its own
features.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact.rows import reference_features
from invariants import decode_all, random_tokens

from ecokv_local import EvictionConfig, inspection
from ecokv_local.config import POLICIES
from ecokv_local.context import Context
from ecokv_local.reference import scores, select

CONFIGS = [EvictionConfig(name) for name in POLICIES if name != "none"]
EVEN = [config for config in CONFIGS if not (config.pyramid or config.ada)]
MODELS = ["tiny_llama_path", "tiny_qwen2vl_path", "tiny_gemma3_path"]
N, BUDGETS = 301, (16, 64, 300)
TIE = 1e-6

Open = Callable[..., Context]


def assert_same_but_for_ties(kept: Any, expected: Any, score: Any, name: str) -> int:
    """Rows that only one of the two keeps lie within a millionth of the cut; how many there are."""
    different = 0
    for head, (ours, theirs) in enumerate(zip(kept, expected, strict=True)):
        odd = np.setxor1d(ours, theirs)
        different += len(odd)
        if len(odd):
            values = score[head][np.isfinite(score[head])]
            cut = score[head][theirs][np.isfinite(score[head][theirs])].min()
            gap = np.abs(score[head][odd] - cut).max()
            scale = max(abs(cut), float(np.ptp(values)))
            assert gap <= TIE * scale, f"{name}, head {head}: rows {odd} differ by {gap:.3g}"
    return different


@pytest.mark.parametrize("types", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_kept_sets_equal_the_reference_from_the_rows_on(
    model: str, flash_attn: bool, types: str, request: pytest.FixtureRequest, open_context: Open
) -> None:
    path: Path = request.getfixturevalue(model)
    context = open_context(path, flash_attn=flash_attn, types=types)
    context.enable(8)
    decode_all(context, random_tokens(N, 200))
    by_protection = defaultdict(list)
    for config in EVEN:
        by_protection[config.n_sinks, config.n_recent].append(config)
    different = total = 0
    for (sinks, recent), configs in by_protection.items():
        native = inspection.features(context, sinks=sinks, recent=recent)
        for layer in range(inspection.shape(context).n_layer):
            expected = reference_features(context, layer, sinks, recent)
            for config in configs:
                for budget in BUDGETS:
                    score = scores(config.policy, expected, config, layer=layer, budget=budget)
                    kept = inspection.plan(native, config, budget)[layer]
                    name = f"{config.policy}, budget {budget}, layer {layer}"
                    different += assert_same_but_for_ties(
                        kept, select(score, budget, config), score, name
                    )
                    total += kept.size
    assert different <= total / 1000


@pytest.mark.parametrize("config", EVEN, ids=lambda c: c.policy)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_goes_on_after_every_policy(
    model: str, config: EvictionConfig, request: pytest.FixtureRequest, open_context: Open
) -> None:
    context = open_context(request.getfixturevalue(model), n_cells=256)
    context.enable(8)
    for round_ in range(3):  # rows that were evicted once are evicted again
        decode_all(context, random_tokens(100, 200, seed=round_))
        planned = inspection.plan(
            inspection.features(context, sinks=config.n_sinks, recent=config.n_recent), config, 40
        )
        chosen = inspection.choose(context, config, 40)
        before = inspection.kept(context)
        result = context.evict(config, 40)
        assert (result.n_after, context.n_rows) == (40, 40)
        if "random" not in config.policy:  # its noise is drawn anew
            expected = np.take_along_axis(before, planned, axis=-1)
            np.testing.assert_array_equal(chosen, planned)
            np.testing.assert_array_equal(inspection.kept(context), expected)
        assert context.n_position == 100 * (round_ + 1)
    assert np.isfinite(decode_all(context, random_tokens(5, 200, seed=9))).all()
