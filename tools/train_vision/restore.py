"""Read exported GGUF files back into PyTorch."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch

from .export import tower_tensors
from .language import Adapter, LanguageModel, split_heads
from .tower import Tower, TowerConfig


def _tensors(reader: gguf.GGUFReader) -> dict[str, torch.Tensor]:
    return {t.name: torch.from_numpy(np.array(t.data, dtype=np.float32)) for t in reader.tensors}


def _number(reader: gguf.GGUFReader, key: str) -> float:
    field = reader.fields[key]
    return field.parts[field.data[0]][0].item()


def read_mmproj(path: Path) -> Tower:
    """The tower of an mmproj that `write_mmproj` wrote."""
    reader = gguf.GGUFReader(path)
    keys = {
        "width": "embedding_length",
        "layers": "block_count",
        "heads": "attention.head_count",
        "hidden": "feed_forward_length",
        "image": "image_size",
        "patch": "patch_size",
        "out": "projection_dim",
    }
    sizes = {name: int(_number(reader, f"clip.vision.{key}")) for name, key in keys.items()}
    tower = Tower(TowerConfig(**sizes)).eval()
    found = _tensors(reader)
    # the names map to views of the tower's own parameters, so copying fills the tower
    with torch.no_grad():
        for name, tensor in tower_tensors(tower).items():
            tensor.copy_(found[name])
    return tower


def read_lora(path: Path, model: LanguageModel) -> Adapter:
    """The adapter of a LoRA that `write_lora` wrote."""
    reader = gguf.GGUFReader(path)
    found = _tensors(reader)
    rank = found["blk.0.attn_q.weight.lora_a"].shape[0]
    hidden = found.get("blk.0.ffn_up.weight.lora_a")
    alpha = _number(reader, "adapter.lora.alpha")
    adapter = Adapter(model, rank, 0 if hidden is None else hidden.shape[0], alpha).eval()
    heads = {"attn_q": model.heads, "attn_k": model.kv_heads}
    with torch.no_grad():
        for key, up in adapter.up.items():
            index, name = key.split("_", 1)
            prefix = f"blk.{index}.{name}.weight"
            value = found[f"{prefix}.lora_b"]
            up.copy_(split_heads(value, heads[name]) if name in heads else value)
            adapter.down[key].copy_(found[f"{prefix}.lora_a"])
    return adapter
