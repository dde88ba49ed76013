"""Equality with the unpatched llama.cpp of the same pin, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from invariants import assert_same_logits, decode_all, random_tokens

from ecokv_local import inspection
from ecokv_local.config import EvictionConfig
from ecokv_local.context import Context

CACHES = [(True, "f16"), (False, "f16"), (True, "q8_0"), (False, "q8_0"), (True, "q4_0")]

Open = Callable[..., Context]
Stock = Callable[..., np.ndarray]


@pytest.fixture(params=["tiny_llama_path", pytest.param("smollm2_path", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(("flash_attn", "types"), CACHES)
@pytest.mark.parametrize("budget", [None, "fits"])
def test_no_budget_and_a_budget_that_fits_are_bit_equal_to_stock(
    model: Path,
    flash_attn: bool,
    types: str,
    budget: str | None,
    open_context: Open,
    stock_logits: Stock,
) -> None:
    context = open_context(model, flash_attn=flash_attn, types=types)
    prompt = random_tokens(300, context.n_vocab)
    continuation = random_tokens(5, context.n_vocab, seed=1)
    stock = stock_logits(model, context, prompt, continuation)
    if budget == "fits":
        context.enable(8)
    ours = [decode_all(context, prompt)]
    for token in continuation:
        if budget == "fits":
            result = context.evict(EvictionConfig(), context.n_rows)
            assert result.n_after == result.n_before == context.n_rows
        ours.append(decode_all(context, [token]))
    assert_same_logits(np.stack(ours), stock, "eviction that keeps everything changes nothing")


@pytest.mark.parametrize(("flash_attn", "types"), CACHES)
def test_the_same_set_in_every_head_equals_a_stock_cache_of_just_those_cells(
    model: Path, flash_attn: bool, types: str, open_context: Open, stock_logits: Stock
) -> None:
    context = open_context(model, flash_attn=flash_attn, types=types)
    context.enable(8)
    prompt = random_tokens(400, context.n_vocab)
    continuation = random_tokens(10, context.n_vocab, seed=1)
    kept = np.sort(np.random.default_rng(2).choice(395, 120, replace=False))
    kept = np.concatenate([kept, np.arange(395, 400)])
    stock = stock_logits(model, context, prompt, continuation, kept)
    decode_all(context, prompt)
    sizes = inspection.shape(context)
    inspection.apply(context, np.tile(kept, (sizes.n_layer, sizes.n_head_kv, 1)))
    assert list(inspection.positions(context)) == list(kept)
    ours = np.stack([decode_all(context, [token]) for token in continuation])
    assert_same_logits(ours, stock[1:], "kept cells equal a compact stock cache")


@pytest.mark.parametrize(
    ("flash_attn", "types"), [*CACHES, (True, "bf16"), (True, "f32"), (False, "f32")]
)
def test_kept_rows_equal_a_numpy_gather_byte_for_byte(
    model: Path, flash_attn: bool, types: str, open_context: Open
) -> None:
    context = open_context(model, flash_attn=flash_attn, types=types)
    context.enable(8)
    decode_all(context, random_tokens(200, context.n_vocab))
    sizes = inspection.shape(context)
    rng = np.random.default_rng(3)
    n_keep = 70
    keep = np.stack(
        [
            np.append(np.sort(rng.choice(199, n_keep - 1, replace=False)), 199)
            for _ in range(sizes.n_layer * sizes.n_head_kv)
        ]
    ).reshape(sizes.n_layer, sizes.n_head_kv, n_keep)

    def split(layer: int, value: bool) -> np.ndarray:  # [n_rows, n_head_kv, bytes of a head]
        raw = inspection.rows(context, layer, value=value)
        return raw.reshape(len(raw), sizes.n_head_kv, -1)

    before = {(i, v): split(i, v) for i in range(sizes.n_layer) for v in (False, True)}
    inspection.apply(context, keep)
    assert context.n_rows == n_keep
    for (layer, value), rows in before.items():
        expected = np.take_along_axis(rows, keep[layer].T[:, :, None], axis=0)
        np.testing.assert_array_equal(split(layer, value), expected)
    np.testing.assert_array_equal(inspection.kept(context), keep)
