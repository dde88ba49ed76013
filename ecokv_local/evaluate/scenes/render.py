"""Scenes: coloured shapes, numbers and words on a varied ground, tables and bar charts, with exact
truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

from .draw import background, shape_mask, text_mask
from .figures import Mark, chart, table
from .vocabulary import COLORS, POSITIONS, SHAPES, WORDS, position_name

SPLITS: dict[str, int] = {"train": 0, "validation": 1, "test": 2}
"""A split is part of every scene's seed, so no two splits can share a scene."""

SCENE_KINDS: dict[str, float] = {"shapes": 0.4, "text": 0.2, "mixed": 0.4}
"""Kinds of scene and how often each is drawn, unless `scene` is told otherwise."""

FIGURE_KINDS: dict[str, float] = {"table": 0.5, "chart": 0.5}
"""Tables and charts, drawn on request."""

CELLS = 12
"""Truth is given on a grid of 12 x 12 cells over the image padded to a square."""

UNIT = 192
"""Sizes below are in units of 1/192 of the image's long side."""

_SHAPE_COUNTS: dict[str, tuple[int, ...]] = {
    "shapes": (1, 2, 2, 3, 3, 4, 4, 5),
    "text": (0,),
    "mixed": (1, 1, 2, 2, 3),
    "crowded": (1, 2, 3, 4),
}
"""How many shapes a kind may have. `crowded` is for training only: much to learn per image."""

_SIDES = (192, 240, 288, 384)
_MARGIN = 3.0
_EDGE_OF_THIRD = 6.0


@dataclass(frozen=True)
class SceneObject:
    """One thing in a scene. `label` is the shape's name, the digits, the word or a bar's height."""

    kind: str
    color: str
    label: str
    x: float
    y: float
    half_width: float
    half_height: float
    position: str

    @property
    def name(self) -> str:
        """What a viewer would call the object."""
        if self.kind == "shape":
            return f"{self.color} {self.label}"
        if self.kind == "bar":
            return f"{self.color} bar"
        return f"{self.kind} {self.label}"


@dataclass(frozen=True)
class Scene:
    """A picture and all that is known about it.

    `owner[row, column]` is the index of the object that covers a cell of the padded square,
    or -1 for ground. The objects of a table stand row by row, `columns` in each.
    """

    image: Image.Image
    objects: tuple[SceneObject, ...]
    owner: np.ndarray
    kind: str
    seed: int
    split: str
    columns: int = 0

    @property
    def shapes(self) -> list[SceneObject]:
        """The objects that are neither number, word nor bar."""
        return [item for item in self.objects if item.kind == "shape"]


@dataclass(frozen=True)
class _Plan:
    kind: str
    label: str
    color: str


def scene(seed: int, split: str = "test", kinds: Mapping[str, float] | None = None) -> Scene:
    """Draw scene number `seed` of a split; the same arguments always give the same scene."""
    rng = np.random.default_rng([SPLITS[split], seed])
    weights = kinds or SCENE_KINDS
    chances = np.array(list(weights.values()))
    kind = str(rng.choice(list(weights), p=chances / chances.sum()))
    if kind in FIGURE_KINDS:
        return _figure(rng, kind, seed, split)
    while True:
        drawn = _draw(rng, kind)
        if drawn is not None:
            return Scene(*drawn, kind, seed, split)


def _figure(rng: np.random.Generator, kind: str, seed: int, split: str) -> Scene:
    """A table or a chart as a scene."""
    side = int(rng.choice(_SIDES))
    columns = 0
    if kind == "table":
        pixels, marks, columns = table(rng, side)
    else:
        pixels, marks = chart(rng, side)
    owner = np.full((CELLS, CELLS), -1, np.int64)
    for index, mark in enumerate(marks):
        box = np.ones((int(mark.bottom - mark.top), int(mark.right - mark.left)), np.float32)
        owner[_cells(box, (int(mark.top), int(mark.left)), (side, side)) > 0.2] = index
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    objects = tuple(_from_mark(mark, side) for mark in marks)
    return Scene(image, objects, owner, kind, seed, split, columns)


def _from_mark(mark: Mark, side: int) -> SceneObject:
    scale = side / UNIT
    x, y = (mark.left + mark.right) / 2, (mark.top + mark.bottom) / 2
    return SceneObject(
        kind=mark.kind,
        color=mark.color,
        label=mark.label,
        x=x / scale,
        y=y / scale,
        half_width=(mark.right - mark.left) / scale / 2,
        half_height=(mark.bottom - mark.top) / scale / 2,
        position=position_name(x / side, y / side),
    )


def _draw(
    rng: np.random.Generator, kind: str
) -> tuple[Image.Image, tuple[SceneObject, ...], np.ndarray] | None:
    """One attempt at a scene; None when nothing found room."""
    plans = _plan(rng, kind)
    width, height = _size(rng)
    scale = max(width, height) / UNIT
    pixels = background(rng, width, height, [plan.color for plan in plans])
    coverage = np.zeros((CELLS, CELLS), np.float32)
    owner = np.full((CELLS, CELLS), -1, np.int64)
    objects: list[SceneObject] = []
    for plan in plans:
        mask = _mask(rng, plan, scale)
        corner = _place(rng, mask, objects, pixels.shape[:2], scale)
        if corner is None:
            continue
        _paint(rng, pixels, mask, corner, plan.color)
        item = _describe(plan, mask, corner, pixels.shape[:2], scale)
        # a text owns its whole box: the gaps between its strokes belong to it
        area = mask if plan.kind == "shape" else np.ones_like(mask)
        cells = _cells(area, corner, pixels.shape[:2])
        mine = (cells > (0.12 if plan.kind == "shape" else 0.2)) & (cells > coverage)
        owner[mine] = len(objects)
        coverage[mine] = cells[mine]
        objects.append(item)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    return (image, tuple(objects), owner) if objects else None


def _plan(rng: np.random.Generator, kind: str) -> list[_Plan]:
    texts: list[str] = []
    if kind == "mixed":
        texts = ["number" if rng.random() < 0.6 else "word"]
    elif kind == "text":
        texts = [["number"], ["word"], ["number", "word"]][int(rng.integers(3))]
    elif kind == "crowded":
        texts = [str(text) for text in rng.choice(["number", "number", "word"], rng.integers(2, 6))]
    counts = _SHAPE_COUNTS[kind]
    palette = [str(name) for name in rng.permutation(list(COLORS))]
    repeat = rng.random() < 0.4
    plans: list[_Plan] = []
    for text in texts:
        plans.append(_Plan(text, _text(rng, text), palette.pop()))
    earlier: list[_Plan] = []
    for _ in range(int(rng.choice(counts))):
        again = bool(earlier) and repeat and rng.random() < 0.6
        shape = earlier[0].label if again else str(rng.choice(SHAPES))
        color = palette[0] if repeat and rng.random() < 0.3 else palette.pop()
        earlier.append(_Plan("shape", shape, color))
    return plans + earlier


def _text(rng: np.random.Generator, kind: str) -> str:
    if kind == "word":
        return str(rng.choice(WORDS))
    return str(rng.integers(0, 10) if rng.random() < 0.3 else rng.integers(10, 100))


def _size(rng: np.random.Generator) -> tuple[int, int]:
    side = int(_SIDES[0] if rng.random() < 0.6 else rng.choice(_SIDES[1:]))
    if rng.random() < 0.8:
        return side, side
    short = side * int(rng.choice((8, 9, 10))) // 12
    return (side, short) if rng.random() < 0.5 else (short, side)


def _mask(rng: np.random.Generator, plan: _Plan, scale: float) -> np.ndarray:
    if plan.kind == "shape":
        return shape_mask(plan.label, rng.uniform(18, 30) * scale, rng.uniform(-0.2, 0.2))
    limit = {"number": (44, 66), "word": (34, 50)}[plan.kind]
    size = rng.uniform(*limit) * (1.0 if len(plan.label) < 5 else 0.85)
    slant = rng.uniform(-0.25, 0.25) if rng.random() < 0.3 else 0.0
    stretch = rng.uniform(0.85, 1.1)
    return text_mask(plan.label, size * scale, rng.uniform(0.0, 0.06), stretch, slant)


def _place(
    rng: np.random.Generator,
    mask: np.ndarray,
    objects: list[SceneObject],
    frame: tuple[int, int],
    scale: float,
) -> tuple[int, int] | None:
    """Find a free corner for a mask, its middle well inside one third of the image."""
    height, width = mask.shape
    gap, edge = _MARGIN * scale, _EDGE_OF_THIRD * scale
    rows, columns = frame[0] - height - 2 * gap, frame[1] - width - 2 * gap
    if rows < 0 or columns < 0:
        return None
    for _ in range(80):
        top, left = gap + rng.random() * rows, gap + rng.random() * columns
        y, x = top + height / 2, left + width / 2
        borders = [abs(y - frame[0] * k / 3) for k in (1, 2)]
        borders += [abs(x - frame[1] * k / 3) for k in (1, 2)]
        if min(borders) < edge:
            continue
        free = all(
            abs(x / scale - other.x) > width / scale / 2 + other.half_width + _MARGIN
            or abs(y / scale - other.y) > height / scale / 2 + other.half_height + _MARGIN
            for other in objects
        )
        if free:
            return int(top), int(left)
    return None


def _paint(
    rng: np.random.Generator,
    pixels: np.ndarray,
    mask: np.ndarray,
    corner: tuple[int, int],
    color: str,
) -> None:
    top, left = corner
    region = pixels[top : top + mask.shape[0], left : left + mask.shape[1]]
    shade = np.array(COLORS[color], np.float32) + rng.uniform(-12, 12, 3).astype(np.float32)
    region += (shade - region) * mask[..., None]


def _describe(
    plan: _Plan, mask: np.ndarray, corner: tuple[int, int], frame: tuple[int, int], scale: float
) -> SceneObject:
    y, x = corner[0] + mask.shape[0] / 2, corner[1] + mask.shape[1] / 2
    return SceneObject(
        kind=plan.kind,
        color=plan.color,
        label=plan.label,
        x=x / scale,
        y=y / scale,
        half_width=mask.shape[1] / scale / 2,
        half_height=mask.shape[0] / scale / 2,
        position=position_name(x / frame[1], y / frame[0]),
    )


def _cells(mask: np.ndarray, corner: tuple[int, int], frame: tuple[int, int]) -> np.ndarray:
    """Share of every cell of the padded square that a mask covers."""
    side = max(frame)
    top = corner[0] + (side - frame[0]) // 2
    left = corner[1] + (side - frame[1]) // 2
    plane = np.zeros((side, side), np.float32)
    plane[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    cell = side // CELLS
    cells: np.ndarray = plane.reshape(CELLS, cell, CELLS, cell).mean((1, 3))
    return cells


def padding(item: Scene) -> tuple[float, float]:
    """Left and top padding, in units, that centres the image in a square."""
    width, height = item.image.size
    scale = max(width, height) / UNIT
    return (UNIT - width / scale) / 2, (UNIT - height / scale) / 2


def reading_order(item: SceneObject) -> tuple[int, float]:
    """Sort key: by row of thirds, then from left to right."""
    return POSITIONS.index(item.position) // 3, item.x
