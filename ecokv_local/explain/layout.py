"""Which row of the cache is which token, or which patch of which picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ecokv_local.estimate.images import image_grid
from ecokv_local.gguf_meta import read_meta

if TYPE_CHECKING:
    from ecokv_local.engine import Engine
    from ecokv_local.images import LoadedImage
    from ecokv_local.projector import Chunk

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Token:
    """A row: a token of the text, or a patch (row, column) of a picture (counted from 0)."""

    text: str
    picture: int | None = None
    patch: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels ``[height, width, 3]`` as the model saw them (padded), and the rows of its patches:
    ``columns`` x ``rows`` from row ``first`` of the cache on.
    """

    name: str
    pixels: npt.NDArray[np.uint8]
    first: int
    columns: int
    rows: int

    def grid(self, values: F64) -> F64:
        """Values ``[..., T]`` of the cache as ``[..., rows, columns]`` of this picture."""
        n = self.columns * self.rows
        part = values[..., self.first : self.first + n]
        return part.reshape(*values.shape[:-1], self.rows, self.columns)


def lay_out(
    engine: Engine, chunks: Sequence[Chunk], images: Sequence[LoadedImage]
) -> tuple[tuple[Token, ...], tuple[Picture, ...]]:
    """Tokens of a prompt and its pictures. A picture that the projector cuts into several chunks is
    shown chunk by chunk.
    """
    tokens: list[Token] = []
    pictures: list[Picture] = []
    several = sum(chunk.is_image for chunk in chunks) != len(images)
    for chunk in chunks:
        if not chunk.is_image:
            pieces = (engine.vocab.piece(token, special=True) for token in chunk.tokens)
            tokens += [Token(piece.decode("utf-8", "replace")) for piece in pieces]
            continue
        index = len(pictures)
        image = images[0 if several else index]
        columns, rows = _grid(engine, chunk.n_tokens, image)
        pixels = _padded(image.rgb, columns / rows) if not several else image.rgb
        pictures.append(Picture(image.name, pixels, len(tokens), columns, rows))
        tokens += [Token("", index, (i // columns, i % columns)) for i in range(chunk.n_tokens)]
    return tuple(tokens), tuple(pictures)


def _grid(engine: Engine, n_tokens: int, image: LoadedImage) -> tuple[int, int]:
    """Columns and rows: as the projector has them, else a square, else a strip."""
    if engine.mmproj_path is not None:
        height, width, _ = image.rgb.shape
        most = engine.image_max_tokens
        grid = image_grid(read_meta(engine.mmproj_path), width, height, most=most)
        if grid is not None and grid[0] * grid[1] == n_tokens:
            return grid
    side = math.isqrt(n_tokens)
    return (side, side) if side * side == n_tokens else (n_tokens, 1)


def _padded(rgb: npt.NDArray[np.uint8], aspect: float) -> npt.NDArray[np.uint8]:
    """A picture in the middle of a black one of another aspect (width over height)."""
    height, width, _ = rgb.shape
    wide, high = max(width, round(height * aspect)), max(height, round(width / aspect))
    result = np.zeros((high, wide, 3), np.uint8)
    top, left = (high - height) // 2, (wide - width) // 2
    result[top : top + height, left : left + width] = rgb
    return result
