"""Small tables and bar charts: pixels, and what stands where on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .draw import background, text_mask
from .vocabulary import COLORS, WORDS

TABLE_SIDES = (2, 3)
"""Rows and columns a table may have."""

BARS = (2, 5)
"""Least and most bars of a chart."""

HIGHEST = 6
"""Bars are 1 to this many steps high; a line marks every step."""

_MARGIN = 14


@dataclass(frozen=True)
class Mark:
    """A number or word in a table, or a bar (its label is its height): box in pixels."""

    kind: str
    label: str
    color: str
    left: float
    top: float
    right: float
    bottom: float


def _ink(pixels: np.ndarray) -> str:
    """Black on light ground, white on dark."""
    return "black" if pixels.mean() > 128 else "white"


def _paint(pixels: np.ndarray, top: float, left: float, mask: np.ndarray, color: str) -> None:
    y, x = int(top), int(left)
    region = pixels[y : y + mask.shape[0], x : x + mask.shape[1]]
    region += (np.array(COLORS[color], np.float32) - region) * mask[..., None]


def _line(pixels: np.ndarray, y: float, x: float, height: float, width: float, color: str) -> None:
    _paint(pixels, y, x, np.ones((max(1, int(height)), max(1, int(width))), np.float32), color)


def table(rng: np.random.Generator, side: int) -> tuple[np.ndarray, list[Mark], int]:
    """A ruled table of numbers and words; its marks row by row, and how many columns it has."""
    rows, columns = (int(n) for n in rng.choice(TABLE_SIDES, 2))
    pixels = background(rng, side, side, ["black", "white"])
    ink = _ink(pixels)
    margin = _MARGIN * side / 192
    height, width = (side - 2 * margin) / rows, (side - 2 * margin) / columns
    for row in range(rows + 1):
        _line(pixels, margin + row * height, margin, 2, side - 2 * margin, ink)
    for column in range(columns + 1):
        _line(pixels, margin, margin + column * width, side - 2 * margin, 2, ink)
    numbers = [str(n) for n in rng.choice(100, rows * columns, replace=False)]
    words = [str(word) for word in rng.choice(WORDS, rows * columns, replace=False)]
    marks = []
    for index in range(rows * columns):
        kind = "word" if rng.random() < 0.25 and columns == 2 else "number"
        label = words[index] if kind == "word" else numbers[index]
        mask = text_mask(label, (40 if columns == 2 else 36) * side / 192, 0.02, 0.95, 0.0)
        row, column = divmod(index, columns)
        top = margin + (row + 0.5) * height - mask.shape[0] / 2
        left = margin + (column + 0.5) * width - mask.shape[1] / 2
        _paint(pixels, top, left, mask, ink)
        box = (left, top, left + mask.shape[1], top + mask.shape[0])
        marks.append(Mark(kind, label, ink, *box))
    return pixels, marks, columns


def chart(rng: np.random.Generator, side: int) -> tuple[np.ndarray, list[Mark]]:
    """Upright bars in different colours over lines at every step of their height."""
    count = int(rng.integers(BARS[0], BARS[1] + 1))
    palette = [str(name) for name in rng.permutation([c for c in COLORS if c != "gray"])[:count]]
    pixels = background(rng, side, side, palette)
    margin = _MARGIN * side / 192
    step, pitch = (side - 2 * margin) / HIGHEST, (side - 2 * margin) / count
    for level in range(HIGHEST + 1):
        _line(pixels, margin + level * step, margin, 1, side - 2 * margin, "gray")
    marks = []
    for index, color in enumerate(palette):
        height = int(rng.integers(1, HIGHEST + 1))
        left, width = margin + (index + 0.2) * pitch, 0.6 * pitch
        top, bottom = side - margin - height * step, side - margin
        _line(pixels, top, left, bottom - top, width, color)
        marks.append(Mark("bar", str(height), color, left, top, left + width, bottom))
    return pixels, marks
