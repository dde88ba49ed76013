"""Language models: plain RoPE, M-RoPE, sliding window, recurrent."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from .vocab import CHATML, add_vocab
from .weights import Weights

HEAD_DIM = 64
RMS_EPS = 1e-5


def _attention_model(
    weights: Weights,
    *,
    n_embd: int,
    n_layer: int,
    n_head: int,
    n_head_kv: int,
    n_ff: int,
    n_ctx: int,
    chat_template: str | None,
    bias: bool = False,
    extra_norms: bool = False,
    more_tokens: tuple[str, ...] = (),
) -> None:
    writer = weights.writer
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    n_vocab = add_vocab(writer, chat_template, more_tokens)
    writer.add_vocab_size(n_vocab)
    weights.matrix("token_embd.weight", n_vocab, n_embd, n_embd**0.5)
    weights.matrix("output.weight", n_vocab, n_embd, 2.0)
    weights.norm("output_norm", n_embd)
    widths = {"q": n_head * HEAD_DIM, "k": n_head_kv * HEAD_DIM, "v": n_head_kv * HEAD_DIM}
    for layer in range(n_layer):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm", n_embd)
        weights.norm(f"{block}.ffn_norm", n_embd)
        for name, width in widths.items():
            scale = 1.0 if name == "v" else 1.5  # attention that is neither flat nor one-hot
            weights.matrix(f"{block}.attn_{name}.weight", width, n_embd, scale)
            if bias:
                weights.vector(f"{block}.attn_{name}.bias", width)
        weights.matrix(f"{block}.attn_output.weight", n_embd, widths["q"])
        if extra_norms:
            weights.norm(f"{block}.attn_q_norm", HEAD_DIM)
            weights.norm(f"{block}.attn_k_norm", HEAD_DIM)
            weights.norm(f"{block}.post_attention_norm", n_embd)
            weights.norm(f"{block}.post_ffw_norm", n_embd)
        weights.matrix(f"{block}.ffn_gate.weight", n_ff, n_embd)
        weights.matrix(f"{block}.ffn_up.weight", n_ff, n_embd)
        weights.matrix(f"{block}.ffn_down.weight", n_embd, n_ff)
    weights.save()


def tiny_llama(
    path: Path,
    *,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 384,
    n_ctx: int = 8192,
    chat_template: str | None = CHATML,
    seed: int = 1,
    more_tokens: tuple[str, ...] = (),
) -> Path:
    """Plain RoPE and grouped queries; width 64 x ``n_head``. ``more_tokens`` are control tokens."""
    _attention_model(
        Weights(path, "llama", "tiny-llama", seed),
        n_embd=HEAD_DIM * n_head,
        n_layer=n_layer,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_ff=n_ff,
        n_ctx=n_ctx,
        chat_template=chat_template,
        more_tokens=more_tokens,
    )
    return path


def tiny_long(path: Path, scaling: str, *, n_ctx_orig: int = 512, seed: int = 5) -> Path:
    """Trained for ``n_ctx_orig`` positions and stretched to 8192: ``longrope`` with factors of its
    own for short and long contexts, or ``yarn``. Else as tiny-llama.
    """
    weights = Weights(path, "llama", f"tiny-{scaling}", seed)
    weights.writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
    weights.writer.add_rope_scaling_factor(8192 / n_ctx_orig)
    weights.writer.add_rope_scaling_orig_ctx_len(n_ctx_orig)
    if scaling == "longrope":
        for name, last in (("short", 1.5), ("long", 12.0)):
            factors = np.geomspace(1.0, last, HEAD_DIM // 2, dtype=np.float32)
            weights.writer.add_tensor(f"rope_factors_{name}.weight", factors)
    _attention_model(
        weights,
        n_embd=256,
        n_layer=2,
        n_head=4,
        n_head_kv=2,
        n_ff=384,
        n_ctx=8192,
        chat_template=CHATML,
    )
    return path


def tiny_qwen2vl(
    path: Path, *, n_layer: int = 2, chat_template: str | None = CHATML, seed: int = 2
) -> Path:
    """M-RoPE (sections 8, 12, 12), biases on Q, K and V; width 256."""
    weights = Weights(path, "qwen2vl", "tiny-qwen2vl", seed)
    weights.writer.add_rope_dimension_sections([8, 12, 12, 0])
    _attention_model(
        weights,
        n_embd=256,
        n_layer=n_layer,
        n_head=4,
        n_head_kv=2,
        n_ff=384,
        n_ctx=8192,
        chat_template=chat_template,
        bias=True,
    )
    return path


def tiny_gemma3(
    path: Path,
    *,
    n_layer: int = 4,
    window: int = 32,
    chat_template: str | None = CHATML,
    seed: int = 3,
) -> Path:
    """Every second layer sees a sliding window of ``window`` tokens, the others all; width 256."""
    weights = Weights(path, "gemma3", "tiny-gemma3", seed)
    weights.writer.add_sliding_window(window)
    weights.writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
    _attention_model(
        weights,
        n_embd=256,
        n_layer=n_layer,
        n_head=4,
        n_head_kv=2,
        n_ff=384,
        n_ctx=8192,
        chat_template=chat_template,
        extra_norms=True,
    )
    return path


def tiny_mamba(
    path: Path, *, n_layer: int = 2, chat_template: str | None = CHATML, seed: int = 4
) -> Path:
    """A recurrent model without any KV pairs; width 128."""
    n_embd, n_inner, n_state, n_conv, rank = 128, 256, 16, 4, 8
    weights = Weights(path, "mamba", "tiny-mamba", seed)
    writer = weights.writer
    writer.add_context_length(8192)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(rank)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    n_vocab = add_vocab(writer, chat_template)
    writer.add_vocab_size(n_vocab)
    weights.matrix("token_embd.weight", n_vocab, n_embd, n_embd**0.5)
    weights.norm("output_norm", n_embd)
    for layer in range(n_layer):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm", n_embd)
        weights.matrix(f"{block}.ssm_in.weight", 2 * n_inner, n_embd)
        weights.vector(f"{block}.ssm_conv1d.weight", n_inner, n_conv, deviation=0.5)
        weights.vector(f"{block}.ssm_conv1d.bias", n_inner)
        weights.matrix(f"{block}.ssm_x.weight", rank + 2 * n_state, n_inner)
        weights.matrix(f"{block}.ssm_dt.weight", n_inner, rank)
        weights.vector(f"{block}.ssm_dt.bias", n_inner)
        weights.vector(f"{block}.ssm_a", n_inner, n_state, mean=-1.0)  # negative: it decays
        weights.vector(f"{block}.ssm_d", n_inner, mean=1.0)
        weights.matrix(f"{block}.ssm_out.weight", n_embd, n_inner)
    weights.save()
    return path
