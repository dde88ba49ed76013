"""M-RoPE and sliding-window memories against a compact cache of the graph without eviction.

A cache is compacted without our code by removing positions, saving the sequence and restoring it
into a fresh context; test_equality proves that this graph is the unpatched one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from invariants import assert_same_logits, decode_all, random_tokens
from PIL import Image

from ecokv_local import Engine, inspection, native
from ecokv_local.context import Context
from ecokv_local.images import load_image

Open = Callable[..., Context]


def compacted(source: Context, fresh: Context, removed: list[int]) -> Context:
    """``fresh`` with the rows of ``source`` whose positions are not in ``removed``."""
    llama = native.llama
    memory = llama.llama_get_memory(source.ptr)
    for position in removed:
        assert llama.llama_memory_seq_rm(memory, 0, position, position + 1)
    size = llama.llama_state_seq_get_size(source.ptr, 0)
    state = (ctypes.c_uint8 * size)()
    assert llama.llama_state_seq_get_data(source.ptr, state, size, 0) == size
    assert llama.llama_state_seq_set_data(fresh.ptr, state, size, 0) == size
    fresh.n_position = source.n_position
    return fresh


def continuations(ours: Context, reference: Context, invariant: str) -> None:
    tokens = random_tokens(10, ours.n_vocab, seed=5)
    steps = [(decode_all(ours, [t]), decode_all(reference, [t])) for t in tokens]
    assert_same_logits(np.stack([a for a, _ in steps]), np.stack([b for _, b in steps]), invariant)


@pytest.mark.parametrize("flash_attn", [True, False])
def test_the_full_attention_layers_of_a_sliding_window_model(
    tiny_gemma3_path: Path, open_context: Open, flash_attn: bool
) -> None:
    prompt = [random_tokens(300, 200), random_tokens(20, 200, seed=1)]
    contexts = [open_context(tiny_gemma3_path, flash_attn=flash_attn) for _ in range(3)]
    contexts[0].enable(8)
    for context in contexts[:2]:
        for part in prompt:  # the window of 32 has left the first part behind
            decode_all(context, part)
    kept = np.concatenate([np.arange(4), np.arange(40, 250, 3), np.arange(250, 320)])
    sizes = inspection.shape(contexts[0])
    assert (sizes.n_layer, sizes.n_layer_other) == (2, 2)
    inspection.apply(contexts[0], np.tile(kept, (sizes.n_layer, sizes.n_head_kv, 1)))
    removed = sorted(set(range(320)) - set(kept.tolist()))
    reference = compacted(contexts[1], contexts[2], removed)
    continuations(contexts[0], reference, "evicted base layers equal a compact cache")


@pytest.fixture(scope="module")
def qwen(tiny_qwen2vl_path: Path, tiny_qwen2vl_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(
        tiny_qwen2vl_path, tiny_qwen2vl_mmproj_path, threads=1, n_ctx=512, flash_attn="on"
    ) as engine:
        yield engine


def read(engine: Engine, context: Context) -> tuple[int, int]:
    """Text, an image of 2 x 8 tokens, text; position and number of tokens of the image."""
    pixels = np.random.default_rng(7).integers(0, 255, (56, 224, 3), np.uint8)
    loaded = load_image(Image.fromarray(pixels))
    assert engine.projector is not None
    with engine.projector.chunks(["before " * 6, " after" * 20], [loaded], add_special=False) as c:
        for chunk in c:
            if chunk.is_image:
                image = (context.n_position, chunk.n_tokens)
                assert chunk.n_positions < chunk.n_tokens
                engine.projector.read_image(chunk, context)
            else:
                context.decode(chunk.tokens)
    return image


def test_mrope_rows_of_an_image_share_positions_and_stay_right(qwen: Engine) -> None:  # P02, P03
    ours, source, fresh = (qwen.context() for _ in range(3))
    ours.enable(8)
    (position, n_tokens), _ = read(qwen, ours), read(qwen, source)
    assert ours.n_position == source.n_position < ours.n_rows
    positions = inspection.positions(ours)
    assert (positions == position).sum() == n_tokens  # cells, not positions, tell them apart
    removed = [2, 4, *range(ours.n_position - 30, ours.n_position - 10, 2)]
    kept = np.flatnonzero(~np.isin(positions, removed))
    sizes = inspection.shape(ours)
    inspection.apply(ours, np.tile(kept, (sizes.n_layer, sizes.n_head_kv, 1)))
    reference = compacted(source, fresh, removed)
    continuations(ours, reference, "M-RoPE rows equal a compact cache")
    for context in (ours, source, fresh):
        context.close()


def test_part_of_an_image_may_stay_in_each_head(qwen: Engine) -> None:
    context = qwen.context()
    context.enable(8)
    read(qwen, context)
    before = {
        (i, v): inspection.rows(context, i, value=v)
        for i in range(inspection.shape(context).n_layer)
        for v in (False, True)
    }
    n = context.n_rows
    sizes = inspection.shape(context)
    rng = np.random.default_rng(1)
    keep = np.stack(
        [np.append(np.sort(rng.choice(n - 1, 39, replace=False)), n - 1) for _ in range(4)]
    ).reshape(sizes.n_layer, sizes.n_head_kv, 40)
    inspection.apply(context, keep)
    for (layer, value), rows in before.items():
        split = rows.reshape(n, sizes.n_head_kv, -1)
        now = inspection.rows(context, layer, value=value).reshape(40, sizes.n_head_kv, -1)
        np.testing.assert_array_equal(
            now, np.take_along_axis(split, keep[layer].T[:, :, None], axis=0)
        )
    assert (np.diff(inspection.positions(context)) >= 0).all()
    assert np.isfinite(decode_all(context, [65])).all()
    context.close()
