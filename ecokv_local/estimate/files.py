"""An estimate for files: headers, sizes of pictures, and the memory that is free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ecokv_local.config import EvictionConfig
from ecokv_local.engine import DEFAULT_CELLS
from ecokv_local.errors import ImageError
from ecokv_local.estimate.images import image_tokens
from ecokv_local.estimate.memory import Estimate, estimate
from ecokv_local.gguf_meta import check_complete, check_projector
from ecokv_local.images import ImageInput
from ecokv_local.memory import free_bytes
from ecokv_local.models import built_in

#: Tokens of the chat template around one question, about.
_TEMPLATE = 16
_BYTES_PER_TOKEN = 4


def estimate_files(
    model: str | Path | None = None,
    mmproj: str | Path | None = None,
    lora: Sequence[str | Path] = (),
    *,
    images: Sequence[Any] = (),
    text: str = "",
    eviction: EvictionConfig | None = None,
    n_ctx: int | None = None,
    n_ubatch: int = 512,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    image_max_tokens: int | None = None,
) -> tuple[Estimate, int | None, list[str]]:
    """The estimate, bytes of memory that are free, and warnings.

    Raises ModelError for a model or projector that cannot be used, ImageError for a picture that is
    none, and as ``estimate`` does.
    """
    files: list[Path] = [Path(path) for path in lora]
    if model is None:
        made = built_in()
        model, mmproj, files = made.model, mmproj or made.mmproj, [*made.lora, *files]
    meta = check_complete(model)
    projector = check_complete(mmproj) if mmproj is not None else None
    if projector is not None:
        check_projector(meta, projector)
        files.append(projector.path)
    if images and projector is None:
        raise ImageError(
            f"{ImageInput.of(images[0]).name}: this model has no projector, it cannot see images",
            hint="give the model's mmproj file with --mmproj",
        )
    tokens: list[int | None] = []
    for image in images:
        height, width, _ = ImageInput.of(image).load().rgb.shape
        assert projector is not None
        tokens.append(image_tokens(projector, width, height, most=image_max_tokens))
    n_text = -(-len(text.encode()) // _BYTES_PER_TOKEN) + _TEMPLATE if text or images else 0
    found = estimate(
        meta,
        n_ctx=n_ctx or (meta.n_ctx_train if n_ctx == 0 else min(meta.n_ctx_train, DEFAULT_CELLS)),
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        eviction=eviction,
        n_text_tokens=n_text,
        n_image_tokens=tokens,
        n_ubatch=n_ubatch,
        weight_bytes=meta.size + sum(check_complete(path).size for path in files),
    )
    free = free_bytes()
    return found, free, _warnings(found, eviction or EvictionConfig(), free)


def _warnings(found: Estimate, eviction: EvictionConfig, free: int | None) -> list[str]:
    warnings = []
    if found.refused and eviction.enabled:
        warnings.append(f"a budget is refused: {found.refused}")
    if None in found.n_image_tokens:
        warnings.append("this kind of projector cuts pictures: their tokens are not known here")
    if found.n_prompt > found.n_ctx:
        warnings.append(
            f"the prompt of about {found.n_prompt} tokens is longer than the context of "
            f"{found.n_ctx}"
        )
    need = found.weight_bytes + _cache(found)
    if free is not None and need > free:
        warnings.append(f"{need / 2**20:,.0f} MiB are needed, {free / 2**20:,.0f} MiB are free")
    return warnings


def _cache(found: Estimate) -> int:
    """Bytes of K and V that will be held at the least."""
    least = found.kv_bytes_full if found.kv_bytes_chunked is None else found.kv_bytes_chunked
    return least + found.kv_bytes_window
