"""M-RoPE through mtmd: an image evicted in the middle of it, then three turns of text, against an
unpatched cache that holds just the rows that stayed, compactly.

Rows of an image share their position: no call of llama.cpp removes some of them. The compact cache
is restored from a state whose other rows were cut out of the bytes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from invariants import assert_same_logits, decode_all, random_tokens
from pictures import noise

from ecokv_local import Engine, inspection, native
from ecokv_local.context import Context
from ecokv_local.images import load_image

_POS_EXT = 12  # bytes of the two further coordinates of a cell, and of its token


def cut_out(state: bytes, kept: list[int]) -> bytes:
    """The state of a sequence (llama_state_seq_get_data, flash attention) with some of its rows."""
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        at += n
        return state[at - n : at]

    def number(form: str) -> int:
        return int(struct.unpack(form, take(struct.calcsize(form)))[0])

    out = [take(8)]  # magic number and sequence
    out.append(take(4))  # streams
    assert out[-1] == struct.pack("<I", 1)
    n_cells = number("<I")
    out.append(struct.pack("<I", len(kept)))
    cells = []
    for _ in range(n_cells):
        head = take(8)
        n_seq = struct.unpack("<iI", head)[1]
        cells.append(head + take(_POS_EXT) + take(4 * n_seq))
    out += [cells[i] for i in kept]
    v_trans, n_layer = take(4), take(4)
    assert v_trans == struct.pack("<I", 0)
    out += [v_trans, n_layer]
    for _ in range(2 * struct.unpack("<I", n_layer)[0]):  # K of all layers, then V
        kind, size = take(4), take(8)
        row = struct.unpack("<Q", size)[0]
        rows = [take(row) for _ in range(n_cells)]
        out += [kind, size, *(rows[i] for i in kept)]
    assert at == len(state)
    return b"".join(out)


def saved(context: Context) -> bytes:
    llama = native.llama
    size = llama.llama_state_seq_get_size(context.ptr, 0)
    data = (ctypes.c_uint8 * size)()
    assert llama.llama_state_seq_get_data(context.ptr, data, size, 0) == size
    return bytes(data)


def restored(context: Context, state: bytes, n_position: int) -> Context:
    data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
    assert native.llama.llama_state_seq_set_data(context.ptr, data, len(state), 0) == len(state)
    context.n_position = n_position
    return context


@pytest.fixture(scope="module")
def engine(tiny_qwen2vl_path: Path, tiny_qwen2vl_mmproj_path: Path) -> Iterator[Engine]:
    paths = (tiny_qwen2vl_path, tiny_qwen2vl_mmproj_path)
    with Engine(*paths, threads=1, n_ctx=512, flash_attn="on", gpu_layers=0) as engine:
        yield engine


def read(engine: Engine, context: Context) -> tuple[int, int]:
    """Text, an image of 4 x 6 tokens, text; first row and number of rows of the image."""
    loaded = load_image(noise(3, (168, 112)))
    assert engine.projector is not None
    first = n = 0
    with engine.projector.chunks(
        ["look at " * 4, " and say" * 6], [loaded], add_special=False
    ) as c:
        for chunk in c:
            if chunk.is_image:
                first, n = context.n_rows, chunk.n_tokens
                engine.projector.read_image(chunk, context)
            else:
                context.decode(chunk.tokens)
    return first, n


def test_an_image_evicted_in_the_middle_and_three_turns(engine: Engine) -> None:
    ours, source, compact = (engine.context() for _ in range(3))
    ours.enable(8)
    (first, n_image), _ = read(engine, ours), read(engine, source)
    assert n_image == 24
    n = ours.n_rows
    image = range(first, first + n_image)
    kept = [i for i in range(n) if i not in image or (i - first) % 5 in (0, 3)]
    assert 8 < sum(i in image for i in kept) < n_image
    sizes = inspection.shape(ours)
    inspection.apply(ours, np.tile(np.array(kept), (sizes.n_layer, sizes.n_head_kv, 1)))
    restored(compact, cut_out(saved(source), kept), source.n_position)
    for turn in range(3):
        for length in (7, 1, 1, 1):  # a question, then an answer token by token
            tokens = random_tokens(length, ours.n_vocab, seed=10 * turn + length)
            a, b = decode_all(ours, tokens), decode_all(compact, tokens)
            assert_same_logits(a, b, f"turn {turn}: part of an image equals a compact cache")
    for context in (ours, source, compact):
        context.close()


def test_the_cut_keeps_a_whole_state_as_it_is(engine: Engine) -> None:
    context, other = engine.context(), engine.context()
    read(engine, context)
    state = saved(context)
    assert cut_out(state, list(range(context.n_rows))) == state
    restored(other, state, context.n_position)
    tokens = random_tokens(5, context.n_vocab, seed=1)
    assert_same_logits(decode_all(context, tokens), decode_all(other, tokens), "restored is equal")
    context.close()
    other.close()
