"""Contexts of our library, and logits of the unpatched one of the same pin."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecokv_local import native
from ecokv_local.cache_types import type_number
from ecokv_local.context import Context, ContextParams

WORKER = Path(__file__).with_name("stock_worker.py")


@pytest.fixture(scope="session")
def stock_dir() -> Path:
    """Folder of the unpatched libllama; the test command builds it."""
    folder = native.library_dir() / "stock"
    if not folder.is_dir():
        pytest.fail(f"no unpatched libllama in {folder}: build with -DECOKV_TEST_TOOLS=ON")
    return folder


@pytest.fixture(scope="session")
def load_model() -> Iterator[Callable[[Path], Any]]:
    models: dict[Path, Any] = {}

    def load(path: Path) -> Any:
        if path not in models:
            native.llama.llama_backend_init()
            params = native.llama.llama_model_default_params()
            params.n_gpu_layers = 0
            models[path] = native.llama.llama_model_load_from_file(str(path).encode(), params)
            assert models[path], native.log.take()
        return models[path]

    yield load
    for model in models.values():
        native.llama.llama_model_free(model)


@pytest.fixture
def open_context(load_model: Callable[[Path], Any]) -> Iterator[Callable[..., Context]]:
    contexts: list[Context] = []

    def open_(
        model: Path, *, flash_attn: bool = True, types: str = "f16", n_cells: int = 1024
    ) -> Context:
        params = ContextParams(
            n_cells=n_cells,
            n_batch=512,
            n_ubatch=512,
            threads=1,
            flash_attn=int(flash_attn),
            type_k=type_number(types),
            type_v=type_number(types if flash_attn or types not in ("q8_0", "q4_0") else "f16"),
        )
        contexts.append(Context(load_model(model), params))
        return contexts[-1]

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture
def stock_logits(stock_dir: Path, tmp_path: Path) -> Callable[..., np.ndarray]:
    """``[1 + len(continuation), n_vocab]`` after the prompt and after each further token."""

    def run(
        model: Path, context: Context, prompt: list[int], continuation: list[int], kept: Any = None
    ) -> np.ndarray:
        params = context.params
        job = {
            "lib_dir": str(stock_dir),
            "model": str(model),
            "n_cells": params.n_cells,
            "flash_attn": params.flash_attn,
            "type_k": params.type_k,
            "type_v": params.type_v,
            "prompt": prompt,
            "continuation": continuation,
            "kept": None if kept is None else [int(p) for p in kept],
            "out": str(tmp_path / "stock.npy"),
        }
        done = subprocess.run(
            [sys.executable, str(WORKER)], input=json.dumps(job), text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return np.load(job["out"])

    return run
