"""The numba reference against the method's sentences, and the native code against the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact.rows import reference_features
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import decode_all, random_tokens

from ecokv_local import EvictionConfig, inspection
from ecokv_local import config as settings_of
from ecokv_local.context import Context
from ecokv_local.reference import evict, features, scores, select
from ecokv_local.reference.measure import Features

SWITCHES = [
    EvictionConfig(compose="sum"),
    EvictionConfig(compose="max"),
    EvictionConfig(compose="prod", lam=0.3),
    EvictionConfig(head_weight="cos"),
    EvictionConfig(head_weight="euclid"),
    EvictionConfig(head_weight=0.25),
    EvictionConfig(value_norm="add"),
    EvictionConfig(value_norm="mul", kernel=1),
    EvictionConfig(sinks=0, recent=1),
    EvictionConfig(pooling="max"),
    EvictionConfig(gqa="max"),
    EvictionConfig("tova", gqa="max"),
    EvictionConfig("snapkv", sinks=4, kernel=7),
    EvictionConfig("random", seed=11),
    EvictionConfig("critical", sinks=4, recent=3),
    EvictionConfig("knorm+ecokv", value_norm="add"),
]
SINGLE = [EvictionConfig(name) for name in settings_of.POLICIES if name != "none"]
POLICIES = [config for config in SINGLE if not (config.pyramid or config.ada)] + SWITCHES


def heads(seed: int, n: int, n_heads: int = 2, group: int = 2, d: int = 16) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(n_heads, 1, d))
    k = centre + rng.normal(size=(n_heads, n, d))
    v = rng.normal(size=(n_heads, n, d))
    q = rng.normal(size=(n_heads * group, min(8, n), d))
    return tuple(np.asarray(x, np.float32) for x in (k, v, q))


sizes = st.integers(14, 120)
seeds = st.integers(0, 2**32 - 1)
configs = st.sampled_from(POLICIES)


@settings(max_examples=30, deadline=None)
@given(seeds, sizes, configs, st.sampled_from([0.25, 4.0]))
def test_scaling_keys_and_values_changes_nothing(
    seed: int, n: int, config: EvictionConfig, a: float
) -> None:
    k, v, q = heads(seed, n)
    kept = evict(config.policy, k, v, q, 13, config)[2]
    np.testing.assert_array_equal(evict(config.policy, k * a, v * 2, q / a, 13, config)[2], kept)


@settings(max_examples=30, deadline=None)
@given(seeds, sizes, st.sampled_from([c for c in POLICIES if "random" not in c.policy]))
def test_permuting_heads_permutes_the_result(seed: int, n: int, config: EvictionConfig) -> None:
    k, v, q = heads(seed, n)
    kept = evict(config.policy, k, v, q, 13, config)[2]
    swapped = evict(
        config.policy, k[::-1].copy(), v[::-1].copy(), np.concatenate([q[2:], q[:2]]), 13, config
    )[2]
    np.testing.assert_array_equal(swapped, kept[::-1])


@settings(max_examples=30, deadline=None)
@given(seeds, sizes)
def test_distance_ignores_a_shift_of_all_keys(seed: int, n: int) -> None:
    k, v, q = heads(seed, n)
    a = features(k, v, q, sinks=4, recent=8)
    b = features(k + np.float32(2.0), v, q, sinks=4, recent=8)
    np.testing.assert_allclose(b.key_euc, a.key_euc, rtol=1e-4)


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 130), st.integers(13, 131), configs)
def test_kept_ranks_are_ascending_and_hold_what_is_protected(
    seed: int, n: int, budget: int, config: EvictionConfig
) -> None:
    k, v, q = heads(seed, n)
    kept_k, kept_v, kept = evict(config.policy, k, v, q, budget, config)
    assert kept.shape == (2, min(n, budget))
    assert (np.diff(kept, axis=-1) > 0).all()
    protected = {*range(min(config.n_sinks, n)), *range(max(0, n - config.n_recent), n)}
    for h in range(2):
        assert protected <= set(kept[h].tolist())
        np.testing.assert_array_equal(kept_k[h], k[h, kept[h]])
        np.testing.assert_array_equal(kept_v[h], v[h, kept[h]])


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(33, 80), st.integers(9, 40))
def test_windows_longer_than_the_text_and_any_first_query(seed: int, n: int, w: int) -> None:
    k, v, _ = heads(seed, n)
    w = min(w, n)
    q = np.random.default_rng(seed).normal(size=(4, w, 16)).astype(np.float32)
    whole = features(k, v, q, sinks=4, recent=8)
    np.testing.assert_allclose(whole.attn_last.sum(-1), 1, rtol=1e-9)
    early = features(k, v, q, sinks=4, recent=8, n_past=0)
    assert (early.attn[:, w:] == 0).all() and (early.attn[:, :w] > 0).all()
    named = features(k, v, q, sinks=4, recent=8, query_ranks=np.arange(n - w, n))
    np.testing.assert_array_equal(named.attn, whole.attn)


@settings(max_examples=40, deadline=None)
@given(seeds, st.sampled_from([31, 32, 33, 63, 64, 65, 96, 127, 128, 129]), configs, st.data())
def test_one_more_pair_of_budget_only_adds(
    seed: int, n: int, config: EvictionConfig, data: st.DataObject
) -> None:
    if "critical" in config.policy:  # its first half depends on the budget
        return
    budget = data.draw(st.integers(13, n - 1))
    k, v, q = heads(seed, n)
    smaller, larger = (evict(config.policy, k, v, q, b, config)[2] for b in (budget, budget + 1))
    for h in range(2):
        assert set(smaller[h].tolist()) < set(larger[h].tolist())


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(30, 90))
def test_tova_keeps_one_set_for_all_heads(seed: int, n: int) -> None:
    kept = evict("tova", *heads(seed, n), 20, EvictionConfig("tova"))[2]
    np.testing.assert_array_equal(kept[0], kept[1])


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(40, 90), st.integers(14, 39))
def test_critical_holds_the_half_with_the_most_attention(seed: int, n: int, budget: int) -> None:
    config = EvictionConfig("critical")
    k, v, q = heads(seed, n)
    kept = evict("critical", k, v, q, budget, config)[2]
    half = (budget - config.n_recent) // 2
    snap = EvictionConfig("snapkv", recent=config.n_recent)
    best = evict("snapkv", k, v, q, half + config.n_recent, snap)[2] if half > 0 else kept[:, :0]
    for h in range(2):
        assert set(best[h].tolist()) <= set(kept[h].tolist())


@settings(max_examples=20, deadline=None)
@given(seeds, sizes)
def test_vatp_with_values_of_one_norm_is_snapkv(seed: int, n: int) -> None:
    k, v, q = heads(seed, n)
    v[:] = v[:, :1]
    both = [evict(p, k, v, q, 13, EvictionConfig(p))[2] for p in ("vatp", "snapkv")]
    np.testing.assert_array_equal(*both)


@settings(max_examples=20, deadline=None)
@given(seeds, sizes)
def test_snapkv_plus_ecokv_is_ecokv(seed: int, n: int) -> None:
    k, v, q = heads(seed, n)
    both = [evict(p, k, v, q, 13, EvictionConfig(p))[2] for p in ("ecokv", "snapkv+ecokv")]
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize(
    ("k", "v", "q"),
    [
        ((2, 9, 4), (2, 8, 4), (2, 3, 4)),
        ((2, 9, 4), (2, 9, 4), (3, 3, 4)),
        ((2, 9), (2, 9), (2, 3)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(k: Any, v: Any, q: Any) -> None:
    with pytest.raises(ValueError):
        features(*(np.ones(s, np.float32) for s in (k, v, q)), sinks=1, recent=1)


def test_identical_keys_leave_importance_to_decide_and_then_the_latest() -> None:
    k, v, q = heads(0, 64)
    k[:] = k[:, :1]
    kept = evict("ecokv", k, v, q, 20, EvictionConfig(kernel=1))[2]
    expected = [*range(4), *range(48, 64)]
    np.testing.assert_array_equal(kept, [expected, expected])


def test_zero_keys_do_not_divide_by_zero() -> None:
    k, v, q = heads(1, 64)
    k[:, 20:40] = 0
    found = features(k, v, q, sinks=4, recent=8)
    assert np.isfinite(found.key_cos).all()
    assert np.isfinite(scores("ecokv", found, EvictionConfig())[:, 4:56]).all()
    evict("ecokv", np.zeros_like(k), v, q, 20, EvictionConfig())


def test_nan_rows_go_first_and_touch_no_mean() -> None:
    k, v, q = heads(2, 60)
    bad = k.copy()
    bad[0, 30], bad[1, 31] = np.nan, np.inf
    found = features(bad, v, q, sinks=4, recent=8)
    kept = evict("ecokv", bad, v, q, 59, EvictionConfig())[2]
    assert 30 not in kept[0] and 31 not in kept[1]
    assert np.isfinite(np.delete(found.attn[0], 30)).all() and found.attn[0, 30] == 0
    bad[0, 59] = np.nan
    with pytest.raises(ValueError, match="protected"):
        evict("ecokv", bad, v, q, 20, EvictionConfig())


# ---- native against reference --------------------------------------------------------------------

CACHES = [(True, "f16", 1e-4), (False, "f16", 1e-4), (True, "q8_0", 1e-3), (True, "f32", 1e-4)]


@pytest.fixture(params=["tiny_llama_path", pytest.param("smollm2_path", marks=pytest.mark.slow)])
def filled(
    request: pytest.FixtureRequest, open_context: Callable[..., Context]
) -> Callable[[bool, str], Context]:
    path: Path = request.getfixturevalue(request.param)

    def fill(flash_attn: bool, types: str) -> Context:
        context = open_context(path, flash_attn=flash_attn, types=types)
        context.enable(8)
        decode_all(context, random_tokens(333, context.n_vocab))
        return context

    return fill


@pytest.mark.parametrize("gqa", ["mean", "max"])
@pytest.mark.parametrize(("flash_attn", "types", "tolerance"), CACHES)
def test_native_features_and_kept_sets_equal_the_reference(
    filled: Any, flash_attn: bool, types: str, tolerance: float, gqa: str
) -> None:
    context = filled(flash_attn, types)
    n_layer = inspection.shape(context).n_layer
    config = EvictionConfig(gqa=gqa)
    native = inspection.features(
        context, sinks=config.n_sinks, recent=config.n_recent, gqa=config.gqa
    )
    for layer in range(n_layer):
        expected = reference_features(context, layer, config.n_sinks, config.n_recent, gqa)
        for name in inspection.FEATURES:
            np.testing.assert_allclose(
                native[name][layer],
                getattr(expected, name),
                rtol=tolerance,
                atol=1e-7,
                err_msg=f"{name}, layer {layer}",
            )


@pytest.mark.parametrize("config", POLICIES, ids=str)
def test_native_kept_sets_equal_the_reference_given_the_same_features(
    filled: Any, config: EvictionConfig
) -> None:
    context = filled(True, "f16")
    native = inspection.features(
        context, sinks=config.n_sinks, recent=config.n_recent, gqa=config.gqa
    )
    for budget in (13, 64, 200, 332, 333):
        kept = inspection.plan(native, config, budget)
        for layer in range(kept.shape[0]):
            same = Features(
                config.n_sinks,
                333 - config.n_recent,
                np.isfinite(native["key_norm"][layer]),
                *(native[n][layer].astype(np.float64) for n in (*inspection.FEATURES, "head_m2")),
            )
            found = scores(config.policy, same, config, layer=layer, budget=budget)
            expected = select(found, budget, config)
            np.testing.assert_array_equal(kept[layer], expected, err_msg=f"layer {layer}")
