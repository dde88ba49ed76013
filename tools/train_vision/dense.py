"""Linear heads that read a patch's truth from the tower's features, and their losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .truth import CHANNELS

GROUND_WEIGHT = 0.12
WEIGHTS: dict[str, float] = {
    "color": 0.4,
    "content": 1.0,
    "position": 0.2,
    "role": 0.2,
    "alike": 0.2,
    "total": 0.1,
}


class Heads(nn.ModuleDict):
    """One linear classifier per channel of the truth."""

    def __init__(self, width: int) -> None:
        super().__init__({name: nn.Linear(width, size) for name, size in CHANNELS.items()})


def dense_loss(
    heads: Heads, features: torch.Tensor, truth: torch.Tensor
) -> tuple[torch.Tensor, dict[str, float]]:
    """Weighted cross-entropy over all channels, and the accuracy on the patches that count."""
    thing = truth[..., 0] > 0
    everywhere = torch.where(thing, 1.0, GROUND_WEIGHT)
    total = features.new_zeros(())
    accuracy: dict[str, float] = {}
    for index, (name, head) in enumerate(heads.items()):
        weight = everywhere if name in ("color", "content") else thing.float()
        weight = (~thing).float() if name == "total" else weight
        scores, target = head(features), truth[..., index]
        loss = F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none")
        total = total + WEIGHTS[name] * (loss * weight.flatten()).sum() / weight.sum()
        right = scores.detach().argmax(-1) == target
        counted = ~thing if name == "total" else thing
        if name == "content":
            accuracy |= _by_content(right, target)
        else:
            accuracy[name] = right[counted].float().mean().item()
    return total, accuracy


def _by_content(right: torch.Tensor, target: torch.Tensor) -> dict[str, float]:
    bounds = {"shape": (1, 9), "digit": (9, 19), "word": (19, CHANNELS["content"])}
    found = {}
    for name, (low, high) in bounds.items():
        chosen = (target >= low) & (target < high)
        if chosen.any():
            found[name] = right[chosen].float().mean().item()
    return found


def table_loss(embedding: torch.Tensor, wanted: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Squared distance to the table's embedding, in shares of its variance."""
    weight = torch.where(truth[..., 0] > 0, 1.0, GROUND_WEIGHT)
    distance = (embedding - wanted).square().mean(-1)
    return (distance * weight).sum() / weight.sum() / wanted.var()
