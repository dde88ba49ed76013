"""What all stages share: data, schedules, checkpoints, the log."""

from __future__ import annotations

import csv
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ecokv_local.evaluate.scenes import Scene, scene

from .preprocess import normalise, to_pixels
from .truth import patch_truth


class Batches:
    """Scenes of the training split one after another, and where the next one starts."""

    def __init__(self, start: int, kinds: dict[str, float] | None = None) -> None:
        self.next_seed = start
        self.kinds = kinds

    def take(self, count: int) -> list[Scene]:
        """The next `count` scenes."""
        seeds = range(self.next_seed, self.next_seed + count)
        self.next_seed += count
        return [scene(seed, "train", self.kinds) for seed in seeds]


def tensors(scenes: list[Scene], side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels and truth of scenes."""
    pixels = normalise(to_pixels([item.image for item in scenes], side))
    return pixels, torch.from_numpy(np.stack([patch_truth(item) for item in scenes]))


def keep_things(truth: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Indices [batch, count] of patches to keep: those of objects first, then random ground."""
    chance = torch.rand(truth.shape[:2], generator=generator)
    order = (chance + (truth[..., 0] > 0)).topk(count, dim=1).indices
    return order.sort(dim=1).values


def take_patches(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """The kept rows of values [batch, patches, channels]."""
    return values.gather(1, keep[..., None].expand(-1, -1, values.shape[-1]))


class Schedule:
    """A learning rate by wall clock: short warm-up, plateau, then a straight line down."""

    def __init__(self, minutes: float, decay_from: float = 0.4, floor: float = 0.05) -> None:
        self.start = time.monotonic()
        self.minutes, self.decay_from, self.floor = minutes, decay_from, floor

    @property
    def elapsed(self) -> float:
        """Minutes since the start."""
        return (time.monotonic() - self.start) / 60

    def factor(self, step: int, warmup: int) -> float:
        """Share of the full learning rate."""
        done = min(1.0, self.elapsed / self.minutes)
        fall = max(0.0, (done - self.decay_from) / (1 - self.decay_from))
        return min(1.0, (step + 1) / warmup) * (1 - (1 - self.floor) * fall)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


class Log:
    """Averages of values, written to a CSV file and printed."""

    def __init__(self, path: Path, stage: str) -> None:
        self.path, self.stage = path, stage
        self.values: dict[str, list[float]] = defaultdict(list)

    def add(self, **values: float) -> None:
        """Remember values until the next `write`."""
        for name, value in values.items():
            self.values[name].append(value)

    def write(self, **fixed: float) -> None:
        """Append one line per value: stage, minutes, images, name, value."""
        fresh = not self.path.exists()
        means = {name: float(np.mean(found)) for name, found in self.values.items()}
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(["stage", *fixed, "name", "value"])
            for name, value in means.items():
                place = [f"{item:.6g}" for item in fixed.values()]
                writer.writerow([self.stage, *place, name, f"{value:.5g}"])
        print(
            " ".join(f"{name} {value:.1f}" for name, value in fixed.items()),
            " ".join(f"{name} {value:.3f}" for name, value in means.items()),
            flush=True,
        )
        self.values.clear()
