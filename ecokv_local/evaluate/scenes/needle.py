"""Several images in one prompt, and a question about one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .questions import Question
from .render import SPLITS, Scene, scene

_KINDS = {"text": 0.4, "mixed": 0.6}
_SEEDS_PER_NEEDLE = 100


@dataclass(frozen=True)
class Needle:
    """Images to show in this order, and the question about one of them (counted from 1)."""

    scenes: tuple[Scene, ...]
    target: int
    question: Question


def needle(seed: int, n_images: int = 4, split: str = "test") -> Needle:
    """Make a prompt of `n_images` scenes, all with a number; one of the numbers is asked for."""
    rng = np.random.default_rng([SPLITS[split], seed, n_images])
    scenes: list[Scene] = []
    numbers: set[str] = set()
    for offset in range(_SEEDS_PER_NEEDLE):
        item = scene(seed * _SEEDS_PER_NEEDLE + offset, split, _KINDS)
        number = number_in(item)
        if number is not None and number not in numbers:
            numbers.add(number)
            scenes.append(item)
        if len(scenes) == n_images:
            break
    target = int(rng.integers(len(scenes))) + 1
    return Needle(tuple(scenes), target, needle_question(scenes, target))


def needle_question(scenes: list[Scene], target: int) -> Question:
    """Ask for the number in image `target`."""
    asked = f"In image {target}, what number is shown?"
    return Question("needle", asked, number_in(scenes[target - 1]) or "")


def number_in(item: Scene) -> str | None:
    """The number that a scene shows, if it shows one."""
    return next((thing.label for thing in item.objects if thing.kind == "number"), None)
