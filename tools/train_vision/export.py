"""Write the trained parts as GGUF files: the tower as an mmproj, the adapter as a LoRA."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch

from .language import Adapter, LanguageModel, interleave_heads
from .preprocess import DEVIATION, MEAN
from .tower import NORM_EPS, Block, Tower, TowerConfig

MMPROJ = "smolvision-mmproj-f16.gguf"
LORA = "smolvision-lora-f16.gguf"


def load_tower(state: dict) -> Tower:
    """Rebuild the tower of a checkpoint."""
    tower = Tower(TowerConfig(**state["config"]))
    tower.load_state_dict(state["tower"])
    return tower.eval()


def load_adapter(state: dict, model: LanguageModel) -> Adapter:
    """Rebuild the adapter of a checkpoint."""
    adapter = Adapter(model, *state["ranks"])
    adapter.load_state_dict(state["adapter"])
    return adapter.eval()


def _layer_tensors(prefix: str, weight: torch.Tensor, bias: torch.Tensor) -> dict:
    return {f"{prefix}.weight": weight, f"{prefix}.bias": bias}


def _block_tensors(index: int, block: Block) -> dict[str, torch.Tensor]:
    prefix = f"v.blk.{index}"
    found: dict[str, torch.Tensor] = {}
    weights, biases = block.qkv.weight.chunk(3), block.qkv.bias.chunk(3)
    for name, weight, bias in zip("qkv", weights, biases, strict=True):
        found |= _layer_tensors(f"{prefix}.attn_{name}", weight, bias)
    layers = {
        "attn_out": block.attention_out,
        "ffn_up": block.up,
        "ffn_down": block.down,
        "ln1": block.norm_attention,
        "ln2": block.norm_hidden,
    }
    for name, layer in layers.items():
        found |= _layer_tensors(f"{prefix}.{name}", layer.weight, layer.bias)
    return found


def tower_tensors(tower: Tower) -> dict[str, torch.Tensor]:
    """All tensors of the mmproj by their name in the GGUF."""
    config = tower.config
    kernel = tower.patch.weight.reshape(config.width, 3, config.patch, config.patch)
    found = _layer_tensors("v.patch_embd", kernel, tower.patch.bias)
    found["v.position_embd.weight"] = tower.position
    for index, block in enumerate(tower.blocks):
        found |= _block_tensors(index, block)
    found |= _layer_tensors("v.post_ln", tower.norm.weight, tower.norm.bias)
    found |= _layer_tensors("mm.0", tower.project_in.weight, tower.project_in.bias)
    found |= _layer_tensors("mm.2", tower.project_out.weight, tower.project_out.bias)
    return found


def write_mmproj(tower: Tower, path: Path) -> None:
    """Write the tower and the projector."""
    config = tower.config
    writer = gguf.GGUFWriter(path, arch="clip")
    writer.add_type("mmproj")
    writer.add_name("smolvision")
    writer.add_description("Small vision tower for SmolLM2-135M-Instruct, trained on drawn scenes")
    writer.add_license("MIT")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "image_size": config.image,
        "patch_size": config.patch,
        "embedding_length": config.width,
        "feed_forward_length": config.hidden,
        "projection_dim": config.out,
        "block_count": config.layers,
        "attention.head_count": config.heads,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", NORM_EPS)
    writer.add_array("clip.vision.image_mean", list(MEAN))
    writer.add_array("clip.vision.image_std", list(DEVIATION))
    # a llava tower stops one block early unless it is told which block's output to use
    writer.add_array("clip.vision.feature_layer", [config.layers])
    for name, tensor in tower_tensors(tower).items():
        half = tensor.dim() > 1 and not name.startswith("v.position")
        add_tensor(writer, name, tensor, half)
    finish(writer)


def adapter_tensors(
    adapter: Adapter, model: LanguageModel
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Name and both factors of every adapted map, rows in llama.cpp's order."""
    heads = {"attn_q": model.heads, "attn_k": model.kv_heads}
    for key, up in adapter.up.items():
        index, name = key.split("_", 1)
        rows = interleave_heads(up, heads[name]) if name in heads else up
        yield f"blk.{index}.{name}.weight", adapter.down[key], rows


def write_lora(adapter: Adapter, model: LanguageModel, path: Path) -> None:
    """Write the adapter; llama.cpp scales each pair by alpha over its rank, as training does."""
    writer = gguf.GGUFWriter(path, arch="llama")
    writer.add_type("adapter")
    writer.add_name("smolvision")
    writer.add_description("Reads smolvision's image tokens with SmolLM2-135M-Instruct")
    writer.add_license("MIT")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", adapter.alpha)
    for name, down, up in adapter_tensors(adapter, model):
        add_tensor(writer, f"{name}.lora_a", down, half=True)
        add_tensor(writer, f"{name}.lora_b", up, half=True)
    finish(writer)


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, half: bool) -> None:
    """Add a tensor as f16 or f32."""
    values = tensor.detach().contiguous().numpy()
    writer.add_tensor(name, values.astype(np.float16 if half else np.float32))


def finish(writer: gguf.GGUFWriter) -> None:
    """Write all parts of a file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Export one or both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tower", type=Path, required=True, help="pretrain or joint checkpoint")
    parser.add_argument("--adapter", type=Path, required=True, help="adapt or joint checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="folder of the GGUF files")
    arguments = parser.parse_args()
    model = LanguageModel()
    files = {
        MMPROJ: lambda path: write_mmproj(load_tower(torch.load(arguments.tower)), path),
        LORA: lambda path: write_lora(
            load_adapter(torch.load(arguments.adapter), model), model, path
        ),
    }
    for name, write in files.items():
        # readers may have the old file open: never change it in place
        partial = arguments.out / f".{name}.partial"
        write(partial)
        os.replace(partial, arguments.out / name)
        print(arguments.out / name, (arguments.out / name).stat().st_size)


if __name__ == "__main__":
    main()
