"""What is true of every patch, as small integers."""

from __future__ import annotations

import numpy as np

from ecokv_local.evaluate.scenes import Scene
from ecokv_local.evaluate.scenes.render import UNIT, padding
from ecokv_local.evaluate.scenes.vocabulary import COLORS, POSITIONS, SHAPES, WORDS

CONTENT: tuple[str, ...] = (*SHAPES, *"0123456789", *WORDS)
ROLES: tuple[str, ...] = ("shape", "word", "first digit", "second digit", "only digit")
MAX_COUNT = 7

CHANNELS: dict[str, int] = {
    "color": len(COLORS) + 1,
    "content": len(CONTENT) + 1,
    "position": len(POSITIONS),
    "role": len(ROLES),
    "alike": MAX_COUNT + 1,
    "total": MAX_COUNT + 1,
}
"""Channels of the truth and their number of values; value 0 of colour and content is ground."""

_COLOR = {name: i + 1 for i, name in enumerate(COLORS)}
_CONTENT = {name: i + 1 for i, name in enumerate(CONTENT)}


def patch_truth(item: Scene) -> np.ndarray:
    """Truth [patches, channels] of a scene.

    A number's patches hold the digit they show, a word's patches the whole word; `alike` counts
    the shapes with the same name, `total` all shapes.
    """
    side = item.owner.shape[0]
    truth = np.zeros((side, side, len(CHANNELS)), np.int64)
    truth[..., 5] = len(item.shapes)
    left = padding(item)[0]
    for index, thing in enumerate(item.objects):
        rows, columns = np.nonzero(item.owner == index)
        middle = (columns + 0.5) * UNIT / side - left
        share = (middle - thing.x + thing.half_width) / (2 * thing.half_width)
        alike = sum(other.label == thing.label for other in item.shapes)
        truth[rows, columns, 0] = _COLOR[thing.color]
        truth[rows, columns, 2] = POSITIONS.index(thing.position)
        truth[rows, columns, 4] = alike if thing.kind == "shape" else 0
        truth[rows, columns, 1] = _CONTENT.get(thing.label, 0)
        truth[rows, columns, 3] = ROLES.index(thing.kind) if thing.kind in ROLES else 4
        if thing.kind == "number" and len(thing.label) == 2:
            second = (share > 0.5).astype(np.int64)
            digits = np.array([_CONTENT[digit] for digit in thing.label])
            truth[rows, columns, 1] = digits[second]
            truth[rows, columns, 3] = 2 + second
    return truth.reshape(side * side, len(CHANNELS))
