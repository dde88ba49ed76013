"""Muon for the tower's weight matrices: momentum made orthogonal by Newton-Schulz steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(batch: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Bring the singular values of a batch of matrices close to one."""
    a, b, c = _COEFFICIENTS
    tall = batch.shape[-2] > batch.shape[-1]
    x = batch.mT if tall else batch
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """One learning rate for matrices of any shape; matrices of one shape are handled together.

    torch's own Muon works in bfloat16, which a CPU without bfloat16 instructions emulates slowly.
    A parameter whose first size is a multiple of its second, such as a joint q, k, v weight, is
    split into square blocks, because each block is a map of its own.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, decay: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.95, "decay": decay, "blocks": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Apply one update."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for parameters in shapes.values():
                self._update(parameters, group)

    def _update(self, parameters: list[nn.Parameter], group: dict) -> None:
        directions = []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            momentum = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            directions.append(parameter.grad.lerp(momentum, group["momentum"]))
        stacked = torch.stack(directions)
        count, rows, columns = stacked.shape
        blocks = group["blocks"]
        update = orthogonalise(stacked.view(count * blocks, rows // blocks, columns))
        update = update.reshape(count, rows, columns)
        gain = max(1.0, rows / blocks / columns) ** 0.5
        for parameter, delta in zip(parameters, update, strict=True):
            parameter.mul_(1 - group["lr"] * group["decay"])
            parameter.add_(delta, alpha=-group["lr"] * gain)
