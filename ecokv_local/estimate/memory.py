"""Bytes of the cache, by the header of the model, as llama.cpp and the sessions allocate them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ecokv_local.cache_types import type_number
from ecokv_local.config import EvictionConfig
from ecokv_local.errors import ModelError
from ecokv_local.gguf_meta import GgufMeta, row_bytes

#: Cells are allocated in steps of as many, as llama.cpp pads them.
STEP = 256
#: Every n-th layer looks at the whole text, where the file does not say so.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "llama4": 4, "gpt-oss": 2}


@dataclass(frozen=True)
class Estimate:
    """Tokens, KV pairs per layer and KV head, and bytes.

    ``n_layer_window`` layers look back a fixed window only: their cache is not evicted.
    ``kv_bytes_full`` is K and V of the other layers at the whole context, ``kv_bytes_window`` those
    of the window layers. With a budget: ``n_kept`` pairs stay of ``n_prompt`` tokens and take
    ``kv_bytes_kept``; ``kv_bytes_after`` is what is allocated for the answer, and
    ``kv_bytes_whole`` and ``kv_bytes_chunked`` the most while a prompt is read in these ways.
    ``refused`` tells why a budget is not possible.
    """

    n_ctx: int
    n_cells: int
    n_layer_full: int
    n_layer_window: int
    n_head_kv: int
    row_bytes: int
    weight_bytes: int
    n_text_tokens: int
    n_image_tokens: tuple[int | None, ...]
    n_prompt: int
    kv_bytes_full: int
    kv_bytes_window: int
    kv_bytes_prompt: int
    n_kept: int | None = None
    kv_bytes_kept: int | None = None
    kv_bytes_after: int | None = None
    kv_bytes_whole: int | None = None
    kv_bytes_chunked: int | None = None
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def estimate(
    meta: GgufMeta,
    *,
    n_ctx: int,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    eviction: EvictionConfig | None = None,
    n_text_tokens: int = 0,
    n_image_tokens: Sequence[int | None] = (),
    n_ubatch: int = 512,
    weight_bytes: int | None = None,
) -> Estimate:
    """What a prompt of ``n_text_tokens`` and images of ``n_image_tokens`` (None: not known) takes.

    Raises ModelError if the header does not tell the sizes of the cache, UsageError for an unknown
    cache type, and BudgetError as ``EvictionConfig.pairs`` does.
    """
    eviction = eviction or EvictionConfig()
    refused = _refused(meta)
    heads = meta.fields.get(f"{meta.architecture}.attention.head_count_kv")
    key_size, value_size = meta.head_sizes()
    if not isinstance(heads, int) or not key_size or not value_size:
        if refused is None:
            raise ModelError(
                f"{meta.path}: the header does not tell the size of the cache",
                hint="layers of different kinds are not estimated; load it with --stats instead",
            )
        heads = key_size = value_size = 0
    n_window = _window_layers(meta)
    one = row_bytes(type_number(cache_type_k), heads * key_size)
    one += row_bytes(type_number(cache_type_v), heads * value_size)
    row = one * (meta.n_layer - n_window)
    n_cells = _padded(n_ctx)
    n_prompt = n_text_tokens + sum(n or 0 for n in n_image_tokens)
    found: dict[str, Any] = {
        "n_ctx": n_ctx,
        "n_cells": n_cells,
        "n_layer_full": meta.n_layer - n_window,
        "n_layer_window": n_window,
        "n_head_kv": heads,
        "row_bytes": row,
        "weight_bytes": meta.size if weight_bytes is None else weight_bytes,
        "n_text_tokens": n_text_tokens,
        "n_image_tokens": tuple(n_image_tokens),
        "n_prompt": n_prompt,
        "kv_bytes_full": row * n_cells,
        "kv_bytes_window": one * n_window * n_cells,
        "kv_bytes_prompt": row * n_prompt,
        "refused": refused,
    }
    if eviction.enabled and refused is None:
        largest = max((n or 0 for n in n_image_tokens), default=0)
        found |= _with_budget(eviction, row, n_cells, n_prompt, max(1, largest), n_ubatch)
    return Estimate(**found)


def _with_budget(
    eviction: EvictionConfig, row: int, n_cells: int, n_prompt: int, largest: int, n_ubatch: int
) -> dict[str, int]:
    """The cells that a turn asks for, as ``turn.Turn`` does."""
    pairs = eviction.pairs(n_prompt, max(1, row))
    kept = min(pairs, n_prompt)
    whole = min(n_cells, _padded(n_prompt + 1))
    part = max(largest + 1, n_ubatch, eviction.slack)
    chunked = min(whole, n_cells, _padded(pairs + part))
    after = min(n_cells, _padded(kept + eviction.slack + 1))
    return {
        "n_kept": kept,
        "kv_bytes_kept": kept * row,
        "kv_bytes_after": (after if eviction.shrink else whole) * row,
        "kv_bytes_whole": whole * row,
        "kv_bytes_chunked": chunked * row,
    }


def _padded(n: int) -> int:
    return -(-n // STEP) * STEP


def _window_layers(meta: GgufMeta) -> int:
    """Layers of a sliding window."""
    fields, arch = meta.fields, meta.architecture
    if not fields.get(f"{arch}.attention.sliding_window"):
        return 0
    pattern = fields.get(f"{arch}.attention.sliding_window_pattern", _PATTERNS.get(arch))
    if not isinstance(pattern, int) or pattern < 1:
        return 0
    return meta.n_layer - meta.n_layer // pattern


def _refused(meta: GgufMeta) -> str | None:
    """Why a budget is refused at the creation of a session."""
    keys = {key.removeprefix(f"{meta.architecture}.") for key in meta.fields}
    if any(key.startswith(("ssm.", "wkv.")) for key in keys):
        attention = meta.fields.get(f"{meta.architecture}.attention.head_count_kv")
        kind = "hybrid" if attention else "recurrent"
        return f"{meta.architecture} has a {kind} memory: its state cannot be evicted by pairs"
    if "attention.kv_lora_rank" in keys:
        return f"{meta.architecture} keeps a latent of keys and values (MLA), not KV pairs"
    if "attention.max_alibi_bias" in keys:
        return f"{meta.architecture} adds a bias by distance (ALiBi)"
    return None
