"""The vision tower and projector, laid out as the pinned clip code runs a llava model."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

NORM_EPS = 1e-6


@dataclass(frozen=True)
class TowerConfig:
    """Sizes of the tower."""

    width: int = 192
    layers: int = 8
    heads: int = 3
    hidden: int = 768
    image: int = 192
    patch: int = 16
    out: int = 576

    @property
    def side(self) -> int:
        """Patches along one side of the image."""
        return self.image // self.patch

    @property
    def tokens(self) -> int:
        """Visual tokens per image."""
        return self.side**2

    def to_dict(self) -> dict[str, int]:
        """Plain values for a checkpoint."""
        return asdict(self)


class Block(nn.Module):
    """Pre-norm attention and feed-forward, GELU in its tanh form as ggml computes it."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm_attention = nn.LayerNorm(config.width, NORM_EPS)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.norm_hidden = nn.LayerNorm(config.width, NORM_EPS)
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm_hidden(x)), approximate="tanh"))


class Tower(nn.Module):
    """Patches to embeddings of the language model: ViT, post-norm, two-layer projector."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.patch = nn.Linear(3 * config.patch**2, width)
        self.position = nn.Parameter(plane_waves(config.side, width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width, NORM_EPS)
        self.project_in = nn.Linear(width, config.out)
        self.project_out = nn.Linear(config.out, config.out)
        self.apply(_initialise)
        for block in self.blocks:
            # equal queries and keys let a patch look at itself and its like, which lie nearby
            block.qkv.weight.data[width : 2 * width] = block.qkv.weight.data[:width]
            for layer in (block.attention_out, block.down):
                layer.weight.data.mul_((2 * config.layers) ** -0.5)

    def patches(self, pixels: torch.Tensor) -> torch.Tensor:
        """Cut [batch, 3, side, side] pixels into rows in the order of a convolution's weights."""
        size, side = self.config.patch, self.config.side
        x = pixels.view(len(pixels), 3, side, size, side, size)
        return x.permute(0, 2, 4, 1, 3, 5).reshape(len(pixels), side * side, 3 * size * size)

    def features(self, pixels: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Features of all patches, or only of those whose indices `keep` [batch, n] names."""
        x = self.patches(pixels)
        position = self.position
        if keep is not None:
            x = x.gather(1, keep[..., None].expand(-1, -1, x.shape[-1]))
            position = position[keep]
        x = self.patch(x) + position
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Features to the language model's embedding space."""
        return self.project_out(F.gelu(self.project_in(features), approximate="tanh"))

    def forward(self, pixels: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        return self.project(self.features(pixels, keep))


def plane_waves(side: int, width: int) -> torch.Tensor:
    """Sines and cosines of row and column: a start from which places are told apart at once.

    They are as large as the embedded patches; a faint start leaves the tower blind to where its
    patches are, and so to the form of things, for thousands of images.
    """
    frequencies = torch.pi * 2 ** torch.linspace(-1, 3, width // 4) / side
    angles = torch.outer(torch.arange(side) + 0.5, frequencies)
    waves = torch.cat([angles.sin(), angles.cos()], -1)
    rows, columns = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
    return torch.cat([rows, columns], -1).reshape(side * side, width)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
        nn.init.zeros_(module.bias)
