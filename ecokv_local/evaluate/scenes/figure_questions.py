"""Questions about tables and charts, of the same kinds as those about other scenes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .render import Scene, SceneObject
from .vocabulary import COLORS

#: Makes a question of kind, text and answer.
Make = Callable[[str, str, str], None]


def ask_about_table(item: Scene, rng: np.random.Generator, make: Make) -> None:
    """A cell by row and column, how many rows, and whether a number is there."""
    index = int(rng.integers(len(item.objects)))
    thing = item.objects[index]
    row, column = divmod(index, item.columns)
    make(thing.kind, f"What {thing.kind} is in row {row + 1}, column {column + 1}?", thing.label)
    make("count", "How many rows are there?", str(len(item.objects) // item.columns))
    make("count", "How many columns are there?", str(item.columns))
    shown = [thing.label for thing in item.objects if thing.kind == "number"]
    other = str(int(rng.integers(100)))
    asked = str(rng.choice([*shown, other]))
    make("exist", f"Is the number {asked} in the table?", "yes" if asked in shown else "no")


def ask_about_chart(item: Scene, rng: np.random.Generator, make: Make) -> None:
    """Colour of the highest and lowest bar, height of one, how many, and whether one is there."""

    def height(bar: SceneObject) -> int:
        return int(bar.label)

    bars = sorted(item.objects, key=height)
    if height(bars[-1]) > height(bars[-2]):
        make("color", "What color is the highest bar?", bars[-1].color)
    if height(bars[0]) < height(bars[1]):
        make("color", "What color is the lowest bar?", bars[0].color)
    bar = item.objects[int(rng.integers(len(bars)))]
    make("number", f"How high is the {bar.color} bar?", bar.label)
    make("count", "How many bars are there?", str(len(bars)))
    asked = str(rng.choice([bar.color, str(rng.choice(list(COLORS)))]))
    there = asked in {thing.color for thing in item.objects}
    article = "an" if asked[0] in "aeiou" else "a"
    make("exist", f"Is there {article} {asked} bar?", "yes" if there else "no")
