"""Keys, values and queries of real prompts, and the logits of what follows with any kept set."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ecokv_local import Engine, EvictionConfig, inspection, native
from ecokv_local.context import Context, Mark
from ecokv_local.evaluate.scenes import questions, scene

ROOT = Path(__file__).parents[2]
N_FOLLOW = 32  # tokens after the prompt whose predictions are compared
WINDOW = 32  # the largest that is studied
RING = WINDOW + N_FOLLOW + 8


@dataclass
class Layer:
    """Rows of the prompt ``[H, n, d]`` and queries ``[H*g, q, d]`` with the ranks that asked."""

    k: np.ndarray
    v: np.ndarray
    q: np.ndarray
    ranks: np.ndarray
    scale: float


@dataclass
class Prompt:
    """A prompt of ``n`` rows in a context, and what follows it."""

    name: str
    kind: str  # "text" or "scene"
    context: Context
    n: int
    follow: list[int]
    layers: list[Layer]
    full: np.ndarray  # log-probabilities with the full cache, [len(follow), n_vocab]
    state: Any
    mark: Mark

    def after(self, keep: np.ndarray) -> np.ndarray:
        """Log-probabilities after each following token with the kept set ``[L, H, n_keep]``."""
        llama, context = native.llama, self.context
        size = len(self.state)
        assert llama.llama_state_seq_set_data(context.ptr, self.state, size, 0) == size
        context.n_position, context._rows, context.n_tokens = self.mark
        inspection.apply(context, keep)
        return decode_with_logits(context, self.follow)


def decode_with_logits(context: Context, tokens: list[int]) -> np.ndarray:
    """Read tokens in one batch; log-probabilities after each, ``[len(tokens), n_vocab]``."""
    llama, batch = native.llama, context._batch
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i] = token, context.n_position + i
        batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, True
    assert llama.llama_decode(context.ptr, batch) == 0
    context.appended(len(tokens), len(tokens))
    rows = [llama.llama_get_logits_ith(context.ptr, i) for i in range(len(tokens))]
    logits = np.array([np.ctypeslib.as_array(r, (context.n_vocab,)) for r in rows], np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _rows(context: Context, layer: int, n: int, *, value: bool) -> np.ndarray:
    info, _ = inspection.layer_info(context, layer)
    kind = gguf.GGMLQuantizationType(info.type_v if value else info.type_k)
    rows = gguf.quants.dequantize(inspection.rows(context, layer, value=value)[:n], kind)
    flat = np.asarray(rows, np.float32).reshape(n, info.n_head_kv, -1)
    return np.ascontiguousarray(flat.transpose(1, 0, 2))


def _capture(name: str, kind: str, context: Context, follow: list[int]) -> Prompt:
    """The prompt is in the cache; its followers are read, looked at and taken back."""
    n, mark = context.n_rows, context.mark()
    full = decode_with_logits(context, follow)
    layers = []
    for index in range(inspection.shape(context).n_layer):
        info, _ = inspection.layer_info(context, index)
        q, positions = inspection.queries(context, index)
        ranks = positions - mark.n_position + n  # llama-like models: one position a row
        k, v = (_rows(context, index, n, value=value) for value in (False, True))
        layers.append(Layer(k, v, q, ranks, info.kq_scale))
    assert context.rollback(mark)
    llama = native.llama
    size = llama.llama_state_seq_get_size(context.ptr, 0)
    state = (ctypes.c_uint8 * size)()
    assert llama.llama_state_seq_get_data(context.ptr, state, size, 0) == size
    return Prompt(name, kind, context, n, follow, layers, full, state, mark)


def text_prompts(engine: Engine, count: int, length: int, split: str) -> Iterator[Prompt]:
    """Pieces of the project's own documents, each followed by what follows it there.

    Of twice as many pieces the test split takes every second one.
    """
    files = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*.md"))]
    files += sorted(ROOT.glob("ecokv_local/*.py"))
    tokens = [
        token
        for file in files
        if file.name != "help.md"
        for token in engine.vocab.tokenize(file.read_text())
    ]
    step = (len(tokens) - length - N_FOLLOW) // (2 * count)
    context = engine.context(length + 512)
    context.enable(RING)
    for i in range(int(split == "test"), 2 * count, 2):
        piece = tokens[i * step :]
        context.clear()
        for start in range(0, length, context.n_batch):
            context.decode(piece[start : min(length, start + context.n_batch)])
        yield _capture(f"text {i}", "text", context, piece[length : length + N_FOLLOW])
    context.close()


def scene_prompts(engine: Engine, first: int, count: int, split: str) -> Iterator[Prompt]:
    """Generated pictures with a question each, followed by the model's own answer."""
    session = engine.session(eviction=EvictionConfig(budget=10**6, window=RING))
    for seed in range(first, first + count):
        item = scene(seed, split=split)
        rng = np.random.default_rng(seed)
        asked = questions(item, rng)
        question = asked[int(rng.integers(len(asked)))]
        session.clear()
        answer = session.answer(question.question, [item.image], max_tokens=N_FOLLOW)
        context = session.context
        follow = engine.vocab.tokenize(answer.text)[:N_FOLLOW]
        generated = context.n_rows - answer.n_prompt
        position, rows, n_tokens = context.mark()
        mark = Mark(position - generated, rows - generated, n_tokens - generated)
        assert context.rollback(mark)
        if follow:
            yield _capture(f"{question.kind} {seed}", "scene", context, follow)
    session.close()
