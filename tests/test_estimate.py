"""Estimates by headers alone agree with what is allocated and read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pictures import noise

from ecokv_local import Engine, EvictionConfig
from ecokv_local.errors import ImageError, ModelError
from ecokv_local.estimate import estimate, image_tokens
from ecokv_local.estimate.files import estimate_files
from ecokv_local.gguf_meta import read_meta
from ecokv_local.images import LoadedImage, load_image

FAMILIES = ("tiny_llama_path", "tiny_qwen2vl_path", "tiny_gemma3_path", "smollm2_path")
TEXT = "Words that stand for a long document, again and again. " * 12


@pytest.mark.parametrize("types", [("f16", "f16"), ("q8_0", "q4_0"), ("f32", "bf16")])
@pytest.mark.parametrize("n_ctx", [300, 1024])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_full_cache(family: str, n_ctx: int, types: tuple[str, str], request) -> None:
    path: Path = request.getfixturevalue(family)
    key, value = types
    found = estimate(read_meta(path), n_ctx=n_ctx, cache_type_k=key, cache_type_v=value)
    more = {"cache_type_k": key, "cache_type_v": value, "flash_attn": "on"}
    with Engine(path, threads=1, gpu_layers=0, **more) as engine:
        session = engine.session(n_ctx=n_ctx)
        assert session.stats()["kv_bytes_allocated"] == found.kv_bytes_full
        assert session.context.bytes_per_row() == found.row_bytes


@pytest.mark.parametrize("prefill", ["whole", "chunked"])
@pytest.mark.parametrize("family", FAMILIES[:2])
def test_the_most_while_a_prompt_is_read(family: str, prefill: str, request) -> None:
    path: Path = request.getfixturevalue(family)
    eviction = EvictionConfig(budget=100, prefill=prefill)  # type: ignore[arg-type]
    with Engine(path, threads=1, gpu_layers=0, n_ctx=2048, n_batch=128, n_ubatch=128) as engine:
        session = engine.session(eviction=eviction)
        peak = session.context.kv_bytes()
        for event in session.ask(TEXT, max_tokens=4):
            peak = max(peak, session.context.kv_bytes())
            answer = event.answer
        found = estimate(
            read_meta(path), n_ctx=2048, eviction=eviction, n_text_tokens=answer.n_prompt,
            n_ubatch=128,
        )  # fmt: skip
        assert answer.n_prompt > 512
        assert peak == (found.kv_bytes_whole if prefill == "whole" else found.kv_bytes_chunked)
        assert session.context.kv_bytes() == found.kv_bytes_after
        assert found.n_kept == 100


@pytest.mark.parametrize(
    ("model", "mmproj", "sizes"),
    [
        ("tiny_llama_path", "tiny_mmproj_path", [(96, 96), (30, 200)]),
        ("tiny_gemma3_path", "tiny_gemma3_mmproj_path", [(64, 200)]),
        (
            "tiny_qwen2vl_path",
            "tiny_qwen2vl_mmproj_path",
            [(28, 28), (96, 96), (500, 90), (301, 207), (17, 900)],
        ),
    ],
)
def test_tokens_of_pictures(model: str, mmproj: str, sizes, request) -> None:
    projector = read_meta(request.getfixturevalue(mmproj))
    paths = [request.getfixturevalue(name) for name in (model, mmproj)]
    with Engine(*paths, threads=1, gpu_layers=0) as engine:
        for size in sizes:
            assert image_tokens(projector, *size) == _counted(engine, load_image(noise(1, size)))


def _counted(engine: Engine, image: LoadedImage) -> int:
    assert engine.projector is not None
    with engine.projector.chunks(["", "x"], [image], add_special=False) as chunks:
        return sum(chunk.n_tokens for chunk in chunks if chunk.is_image)


def test_files_and_pictures(tmp_path: Path, tiny_llama_path, tiny_mmproj_path) -> None:
    noise(1, (64, 32)).save(tmp_path / "a.png")
    pair = (tiny_llama_path, tiny_mmproj_path)
    found, free, warnings = estimate_files(*pair, images=[tmp_path / "a.png"], text="x" * 400)
    assert (found.n_image_tokens, found.n_text_tokens) == ((36,), 116)
    assert found.weight_bytes == sum(path.stat().st_size for path in pair)
    assert not warnings and (free is None or free > 0)
    with pytest.raises(ImageError, match=r"none\.png"):
        estimate_files(*pair, images=[tmp_path / "none.png"])
    with pytest.raises(ImageError, match="no projector"):
        estimate_files(tiny_llama_path, images=[tmp_path / "a.png"])
    (tmp_path / "cut.gguf").write_bytes(tiny_llama_path.read_bytes()[:9000])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        estimate_files(tmp_path / "cut.gguf")


def test_what_cannot_be_evicted_is_told(tiny_mamba_path: Path) -> None:
    found, _, warnings = estimate_files(tiny_mamba_path, eviction=EvictionConfig(budget=64))
    assert "recurrent" in (found.refused or "") and found.n_kept is None
    assert any("refused" in warning for warning in warnings)


def test_more_than_there_is(tiny_llama_path: Path) -> None:
    _, _, warnings = estimate_files(tiny_llama_path, n_ctx=1 << 26, text="x")
    assert any("MiB are free" in warning for warning in warnings)
