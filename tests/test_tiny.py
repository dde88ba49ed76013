"""The tiny models load in the pinned llama.cpp, tokenise any bytes, and see images."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LANGUAGE = ("tiny_llama_path", "tiny_qwen2vl_path", "tiny_gemma3_path", "tiny_mamba_path")


@pytest.fixture(scope="module")
def native() -> Any:
    from ecokv_local import native

    native.llama.llama_backend_init()
    return native


@pytest.fixture
def load(native: Any) -> Iterator[Any]:
    """`load(path)` gives a model, freed after the test."""
    models = []

    def run(path: Path) -> Any:
        params = native.llama.llama_model_default_params()
        params.n_gpu_layers = 0
        models.append(native.llama.llama_model_load_from_file(str(path).encode(), params))
        assert models[-1], path
        return models[-1]

    yield run
    for model in models:
        native.llama.llama_model_free(model)


def logits(llama: Any, model: Any, tokens: list[int]) -> np.ndarray:
    """Logits after the last token."""
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
    context = llama.llama_init_from_model(model, params)
    batch = (llama.llama_token * len(tokens))(*tokens)
    assert llama.llama_decode(context, llama.llama_batch_get_one(batch, len(tokens))) == 0
    width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    values = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (width,)).copy()
    llama.llama_free(context)
    return values


@pytest.mark.parametrize("name", LANGUAGE)
def test_model_decodes_and_looks_back(name: str, native: Any, load: Any, request: Any) -> None:
    model = load(request.getfixturevalue(name))
    values = logits(native.llama, model, [*b"a star, a circle and a square"])
    other = logits(native.llama, model, [*b"b star, a circle and a square"])
    assert np.isfinite(values).all() and values.std() > 0.1
    assert np.abs(values - other).max() > 1e-4  # the first token still counts at the last


@pytest.mark.parametrize("name", LANGUAGE)
def test_any_bytes_are_tokenised_and_come_back(
    name: str, native: Any, load: Any, request: Any
) -> None:
    llama = native.llama
    vocab = llama.llama_model_get_vocab(load(request.getfixturevalue(name)))
    text = "<|im_start|>user\nthe cat 🙂 é \t\x00\x7f in the<|im_end|>\n".encode()
    tokens = (llama.llama_token * 256)()
    n = llama.llama_tokenize(vocab, text, len(text), tokens, 256, False, True)
    assert 0 < n < len(text)
    back, buffer = b"", c.create_string_buffer(64)
    for token in tokens[:n]:
        size = llama.llama_token_to_piece(vocab, token, buffer, 64, 0, True)
        back += buffer.raw[:size]
    assert back == text


def test_kinds_of_models(native: Any, load: Any, request: Any) -> None:
    llama = native.llama
    models = {name: load(request.getfixturevalue(name)) for name in LANGUAGE}
    recurrent = {n for n, model in models.items() if llama.llama_model_is_recurrent(model)}
    windowed = {n for n, model in models.items() if llama.llama_model_n_swa(model) > 0}
    rope = {n: llama.llama_model_rope_type(model) for n, model in models.items()}
    assert recurrent == {"tiny_mamba_path"}
    assert windowed == {"tiny_gemma3_path"}
    assert rope["tiny_qwen2vl_path"] == llama.LLAMA_ROPE_TYPE_MROPE


@pytest.mark.parametrize(
    ("model_name", "mmproj_name", "shape", "tokens", "positions"),
    [
        ("tiny_llama_path", "tiny_mmproj_path", (50, 70), 36, 36),
        ("tiny_qwen2vl_path", "tiny_qwen2vl_mmproj_path", (56, 224), 16, 8),
        ("tiny_gemma3_path", "tiny_gemma3_mmproj_path", (50, 70), 16, 16),
    ],
)
def test_projector_sees(
    model_name: str,
    mmproj_name: str,
    shape: tuple[int, int],
    tokens: int,
    positions: int,
    load: Any,
    request: Any,
) -> None:
    from PIL import Image

    from ecokv_local.images import load_image
    from ecokv_local.projector import Projector

    model = load(request.getfixturevalue(model_name))
    path = request.getfixturevalue(mmproj_name)
    projector = Projector(path, model, threads=1, use_gpu=False, image_max_tokens=None)
    try:
        image = load_image(Image.effect_noise(shape[::-1], 80.0))
        with projector.chunks(["a", "b"], [image], add_special=False) as chunks:
            seen = [chunk for chunk in chunks if chunk.is_image]
            assert [(chunk.n_tokens, chunk.n_positions) for chunk in seen] == [(tokens, positions)]
    finally:
        projector.close()


def test_wrong_projector_is_refused_by_libmtmd(
    load: Any, tiny_llama_path: Path, wrong_mmproj_path: Path
) -> None:
    from ecokv_local.errors import ModelError
    from ecokv_local.projector import Projector

    with pytest.raises(ModelError, match=str(wrong_mmproj_path)):
        Projector(
            wrong_mmproj_path,
            load(tiny_llama_path),
            threads=1,
            use_gpu=False,
            image_max_tokens=None,
        )


def test_same_arguments_same_bytes(tmp_path: Path, tiny_llama_path: Path) -> None:
    import tiny

    assert tiny.tiny_llama(tmp_path / "again.gguf").read_bytes() == tiny_llama_path.read_bytes()
