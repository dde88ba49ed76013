"""Heads and layers of different length: against masks by hand, on every kind of memory."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import decode_all, random_tokens

from ecokv_local import EvictionConfig, inspection, native
from ecokv_local.config import POLICIES
from ecokv_local.context import Context
from ecokv_local.reference.budgets import layer_budgets, select_uneven
from ecokv_local.reference.measure import Features
from ecokv_local.reference.selection import scores

Open = Callable[..., Context]
MODELS = ["tiny_llama_path", "tiny_qwen2vl_path", "tiny_gemma3_path"]
N, N_KEEP = 300, 80
UNEVEN = [
    EvictionConfig("pyramid"),
    EvictionConfig("ada", sinks=4),
    EvictionConfig("ecokv", head_budgets="ada"),
    EvictionConfig("ecokv", layer_budgets="pyramid", head_budgets="ada", floor=0.5, beta=4),
    EvictionConfig("knorm", head_budgets="ada", floor=0.0),
    EvictionConfig("critical", layer_budgets="pyramid", beta=1),
    EvictionConfig("pyramid+ecokv"),
    EvictionConfig("random", layer_budgets="pyramid"),
]


def uneven_set(context: Context, holes: Callable[[int, int], int]) -> tuple[Any, Any]:
    """Kept ranks with -1 for holes, and the same with other rows in place of the holes."""
    sizes = inspection.shape(context)
    rng = np.random.default_rng(3)
    ranks = np.full((sizes.n_layer, sizes.n_head_kv, N_KEEP), -1, np.int32)
    for layer in range(sizes.n_layer):
        for head in range(sizes.n_head_kv):
            n = N_KEEP - holes(layer, head)
            middle = np.sort(rng.choice(np.arange(N_KEEP, N - 16), n - 16, replace=False))
            ranks[layer, head, N_KEEP - n :] = [*middle, *range(N - 16, N)]
    return ranks, np.where(ranks < 0, np.arange(N_KEEP), ranks)


class HandMask:
    """Writes -inf over the logits of holes before their softmax; sees nodes ``kq-<layer>``."""

    def __init__(self) -> None:
        self.holes: dict[int, Any] = {}  # layer of the model -> holes of its query heads
        ggml = c.CDLL(str(native.library_dir() / "libggml-base.so"))
        self._name, self._data = ggml.ggml_get_name, ggml.ggml_get_data_f32
        self._name.restype, self._name.argtypes = c.c_char_p, [c.c_void_p]
        self._data.restype, self._data.argtypes = c.c_void_p, [c.c_void_p]
        self.n_seen = 0
        self.callback = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_bool, c.c_void_p)(self._on_node)

    def _on_node(self, tensor: int, ask: bool, _data: int) -> bool:
        kind, _, layer = self._name(tensor).decode().partition("-")
        if kind != "kq" or int(layer) not in self.holes:
            return not ask
        if not ask:
            n_kv, n_tokens, n_head, _ = (c.c_int64 * 4).from_address(tensor + 16)  # ne
            size = n_kv * n_tokens * n_head
            flat = np.ctypeslib.as_array((c.c_float * size).from_address(self._data(tensor)))
            logits = flat.reshape(n_head, n_tokens, n_kv)
            for head, n in enumerate(self.holes[int(layer)]):
                logits[head, :, :n] = -np.inf
            self.n_seen += 1
        return True


def steps(context: Context) -> np.ndarray:
    """Many tokens at once, then single ones."""
    parts = [random_tokens(50, 200, seed=4), *[[t] for t in random_tokens(4, 200, seed=5)]]
    return np.stack([decode_all(context, part) for part in parts])


@pytest.fixture
def masked_by_hand(monkeypatch: pytest.MonkeyPatch, open_context: Open) -> Callable[..., Any]:
    def open_(path: Path, **options: Any) -> tuple[Context, HandMask]:
        hand = HandMask()
        default = native.llama.llama_context_default_params

        def with_callback() -> Any:
            params = default()
            params.cb_eval = c.cast(hand.callback, type(params.cb_eval))
            return params

        with monkeypatch.context() as patch:
            patch.setattr(native.llama, "llama_context_default_params", with_callback)
            return open_context(path, **options), hand

    return open_


@pytest.mark.parametrize("by", ["heads", "layers"])
@pytest.mark.parametrize("model", MODELS)
def test_holes_equal_rows_masked_by_hand(
    model: str, by: str, request: pytest.FixtureRequest, open_context: Open, masked_by_hand: Any
) -> None:
    path = request.getfixturevalue(model)
    reference, hand = masked_by_hand(path, flash_attn=False)
    contexts = [reference, *[open_context(path, flash_attn=fa) for fa in (False, True, True)]]
    for context in contexts:
        context.enable(8)
        decode_all(context, random_tokens(N, 200))

    def holes(layer: int, head: int) -> int:
        return (20 * layer + 31 * head) % 60 if by == "heads" else 37 * layer

    ranks, padded = uneven_set(contexts[1], holes)
    for context, keep in zip(contexts, [padded, ranks, ranks, padded], strict=True):
        inspection.apply(context, keep)
    for layer in range(ranks.shape[0]):
        info, _ = inspection.layer_info(reference, layer)
        per_head = [holes(layer, h) for h in range(info.n_head_kv)]
        hand.holes[info.il] = np.repeat(per_head, info.n_head // info.n_head_kv)
    by_hand, plain, fused, unmasked = (steps(context) for context in contexts)
    assert hand.n_seen == len(by_hand) * ranks.shape[0]
    np.testing.assert_array_equal(plain, by_hand)
    off = np.abs(unmasked - by_hand).max()
    assert np.abs(fused - by_hand).max() < off / 20
    np.testing.assert_array_equal(inspection.kept(contexts[1])[:, :, :N_KEEP], ranks)


@pytest.mark.parametrize("types", ["f16", "q8_0"])
@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_layers_of_different_size_hold_less_and_compute_the_same(
    model: str, flash_attn: bool, types: str, request: pytest.FixtureRequest, open_context: Open
) -> None:
    path = request.getfixturevalue(model)
    config, budget = EvictionConfig("pyramid", sinks=4), 600
    small, large = (
        open_context(path, flash_attn=flash_attn, types=types, n_cells=2048) for _ in range(2)
    )
    for context in (small, large):
        context.enable(8)
        decode_all(context, random_tokens(1400, 200))
        result = context.evict(config, budget)
        assert result.n_after == context.n_rows == context.rows_max(config, budget, 1400)
        assert result.pair_bytes == budget * context.bytes_per_row() and result.hole_bytes > 0
    rows = small.n_rows
    cells = small.resize(rows + 70)
    assert large.kv_bytes() == 2048 * large.bytes_per_row()
    assert small.kv_bytes() < 0.8 * cells * small.bytes_per_row()
    assert small.kv_bytes() <= result.pair_bytes + (cells - rows + 32) * small.bytes_per_row()
    np.testing.assert_array_equal(steps(small), steps(large))
    small.resize(2048)  # room for the next prompt
    for context in (small, large):
        decode_all(context, random_tokens(300, 200, seed=6))
        context.evict(config, budget)
    np.testing.assert_array_equal(inspection.kept(small), inspection.kept(large))
    small.clear()
    large.clear()
    np.testing.assert_array_equal(steps(small), steps(large))


@pytest.mark.parametrize("config", UNEVEN, ids=lambda c: f"{c.policy}-{c.pyramid:d}{c.ada:d}")
@pytest.mark.parametrize("model", MODELS)
def test_a_model_goes_on_after_uneven_evictions(
    model: str, config: EvictionConfig, request: pytest.FixtureRequest, open_context: Open
) -> None:
    context, budget = open_context(request.getfixturevalue(model)), 60
    context.enable(8)
    sizes = None
    for round_ in range(3):
        decode_all(context, random_tokens(150, 200, seed=round_))
        chosen, before = inspection.choose(context, config, budget), inspection.kept(context)
        context.evict(config, budget)
        sizes = inspection.shape(context)
        after = inspection.kept(context)
        assert (after >= 0).sum() == budget * sizes.n_layer * sizes.n_head_kv
        if config.policy != "random":
            expected = np.take_along_axis(before, np.maximum(chosen, 0), axis=-1)
            np.testing.assert_array_equal(after, np.where(chosen < 0, -1, expected))
        assert (after[:, :, -config.n_recent :] >= 0).all()
        assert context.n_position == 150 * (round_ + 1)
    seen = sum(layer["n_pairs_kept"] for layer in context.counters())
    assert sizes is not None and seen == 3 * budget * sizes.n_layer * sizes.n_head_kv
    assert np.isfinite(decode_all(context, random_tokens(5, 200, seed=9))).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(13, 130),
    st.integers(13, 60),
    st.sampled_from(UNEVEN),
    st.booleans(),
)
def test_plans_equal_the_reference(
    seed: int, n: int, budget: int, config: EvictionConfig, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    n_layers, n_heads = 3, 3
    arrays: dict[str, Any] = {
        name: rng.uniform(0.01, 1, (n_layers, n_heads, n)).astype(np.float32)
        for name in inspection.FEATURES
    }
    arrays["attn"] *= rng.uniform(0.2, 3, (n_layers, n_heads, 1)).astype(np.float32)
    if ties:
        arrays = {name: np.ceil(array * 4) / 4 for name, array in arrays.items()}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    arrays["head_m2"] = rng.uniform(0, 0.9, (n_layers, n_heads)).astype(np.float32)
    kept = inspection.plan(arrays, config, budget)
    budgets = layer_budgets(budget, n_layers, n, config)
    np.testing.assert_array_equal(inspection.layer_budgets(config, budget, n_layers, n), budgets)
    assert kept.shape[-1] <= n
    for layer in range(n_layers):
        lo = min(config.n_sinks, n)
        features = Features(
            lo=lo,
            hi=max(lo, n - config.n_recent),
            finite=np.ones((n_heads, n), bool),
            m2=arrays["head_m2"][layer].astype(np.float64),
            **{name: arrays[name][layer].astype(np.float64) for name in inspection.FEATURES},
        )
        score = scores(config.policy, features, config, layer=layer, budget=int(budgets[layer]))
        expected = (
            select_uneven(score, int(budgets[layer]), config)
            if n > budget
            else [np.arange(n)] * n_heads
        )
        for head in range(n_heads):
            ours = kept[layer, head]
            np.testing.assert_array_equal(ours[ours >= 0], expected[head])
    if n > budget:
        assert (kept >= 0).sum() == budget * n_layers * n_heads


def test_plus_ecokv_takes_uneven_hosts() -> None:
    assert {"pyramid+ecokv", "ada+ecokv"} <= set(POLICIES)
    config = EvictionConfig("ada+ecokv")
    assert config.ada and not config.pyramid and config.n_sinks == 4
