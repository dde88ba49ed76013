"""Projectors: llava and Gemma 3 towers of fixed size, a Qwen2-VL tower of any size, and a tower as
of Idefics 3 that cuts pictures into tiles.
"""

from __future__ import annotations

from pathlib import Path

from .weights import Weights

WIDTH, HIDDEN, HEADS = 64, 128, 2


def _keys(
    weights: Weights, kind: str, *, image_size: int, patch: int, n_embd: int, n_layer: int
) -> None:
    writer = weights.writer
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "image_size": image_size,
        "patch_size": patch,
        "embedding_length": WIDTH,
        "feed_forward_length": HIDDEN,
        "projection_dim": n_embd,
        "block_count": n_layer,
        "attention.head_count": HEADS,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])


def _blocks(weights: Weights, n_layer: int) -> None:
    for layer in range(n_layer):
        block = f"v.blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            weights.linear(f"{block}.{name}", WIDTH, WIDTH)
        weights.linear(f"{block}.ffn_up", HIDDEN, WIDTH)
        weights.linear(f"{block}.ffn_down", WIDTH, HIDDEN)
        weights.norm(f"{block}.ln1", WIDTH, bias=True)
        weights.norm(f"{block}.ln2", WIDTH, bias=True)
    weights.norm("v.post_ln", WIDTH, bias=True)


def tiny_mmproj(
    path: Path,
    *,
    n_embd: int = 256,
    image_size: int = 96,
    patch: int = 16,
    n_layer: int = 1,
    seed: int = 11,
) -> Path:
    """A llava tower; (``image_size`` / ``patch``)^2 tokens for an image, so 36."""
    weights = Weights(path, "clip", "tiny-mmproj", seed)
    _keys(weights, "mlp", image_size=image_size, patch=patch, n_embd=n_embd, n_layer=n_layer)
    # a llava tower stops one block early unless it is told which block's output to use
    weights.writer.add_array("clip.vision.feature_layer", [n_layer])
    weights.kernel("v.patch_embd.weight", WIDTH, patch)
    weights.vector("v.patch_embd.bias", WIDTH)
    weights.vector("v.position_embd.weight", (image_size // patch) ** 2, WIDTH, deviation=0.5)
    _blocks(weights, n_layer)
    weights.linear("mm.0", n_embd, WIDTH)
    weights.linear("mm.2", n_embd, n_embd)
    weights.save()
    return path


def tiny_qwen2vl_mmproj(
    path: Path, *, n_embd: int = 256, patch: int = 14, n_layer: int = 1, seed: int = 12
) -> Path:
    """A Qwen2-VL tower: M-RoPE, one token for each 2 x 2 patches, from 8 tokens on."""
    weights = Weights(path, "clip", "tiny-qwen2vl-mmproj", seed)
    _keys(
        weights,
        "qwen2vl_merger",
        image_size=patch * 8,
        patch=patch,
        n_embd=n_embd,
        n_layer=n_layer,
    )
    weights.kernel("v.patch_embd.weight", WIDTH, patch)
    weights.kernel("v.patch_embd.weight.1", WIDTH, patch)
    _blocks(weights, n_layer)
    weights.linear("mm.0", n_embd, 4 * WIDTH)
    weights.linear("mm.2", n_embd, n_embd)
    weights.save()
    return path


def tiny_gemma3_mmproj(path: Path, *, n_embd: int = 256, n_layer: int = 1, seed: int = 13) -> Path:
    """A Gemma 3 tower: 16 tokens for an image, which the model reads without a causal mask."""
    weights = Weights(path, "clip", "tiny-gemma3-mmproj", seed)
    _keys(weights, "gemma3", image_size=128, patch=16, n_embd=n_embd, n_layer=n_layer)
    weights.writer.add_uint32("clip.vision.projector.scale_factor", 2)
    weights.kernel("v.patch_embd.weight", WIDTH, 16)
    weights.vector("v.patch_embd.bias", WIDTH)
    weights.vector("v.position_embd.weight", 64, WIDTH, deviation=0.5)
    _blocks(weights, n_layer)
    weights.matrix("mm.input_projection.weight", WIDTH, n_embd)
    weights.norm("mm.soft_emb_norm", WIDTH)
    weights.save()
    return path


def tiny_idefics3_mmproj(
    path: Path, *, n_embd: int = 256, n_layer: int = 1, seed: int = 14
) -> Path:
    """An Idefics 3 (SmolVLM) tower: tiles of 64 x 64 of a picture of 128, 4 tokens each, and the
    whole picture after them.
    """
    weights = Weights(path, "clip", "tiny-idefics3-mmproj", seed)
    _keys(weights, "idefics3", image_size=64, patch=16, n_embd=n_embd, n_layer=n_layer)
    weights.writer.add_uint32("clip.vision.projector.scale_factor", 2)
    weights.writer.add_uint32("clip.vision.preproc_image_size", 128)
    weights.kernel("v.patch_embd.weight", WIDTH, 16)
    weights.vector("v.patch_embd.bias", WIDTH)
    weights.vector("v.position_embd.weight", 16, WIDTH, deviation=0.5)
    _blocks(weights, n_layer)
    weights.matrix("mm.model.fc.weight", n_embd, 4 * WIDTH)
    weights.save()
    return path
