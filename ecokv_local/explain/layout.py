"""Which row of the cache is which token, or which patch of which picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ecokv_local.estimate.images import image_grid, tile_grid
from ecokv_local.gguf_meta import GgufMeta, read_meta

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


@dataclass(frozen=True)
class _Part:
    """A chunk of an image: which of how many."""

    image: LoadedImage
    index: int
    n: int


def lay_out(
    engine: Engine, chunks: Sequence[Chunk], images: Sequence[LoadedImage]
) -> tuple[tuple[Token, ...], tuple[Picture, ...]]:
    """Tokens of a prompt and its pictures. A picture that the projector cuts into several chunks is
    shown part by part: over what the part shows of it where that is known, else over grey.
    """
    meta = None if engine.mmproj_path is None else read_meta(engine.mmproj_path)
    parts = iter(_parts(chunks, images))
    tokens: list[Token] = []
    pictures: list[Picture] = []
    for chunk in chunks:
        if not chunk.is_image:
            pieces = (engine.vocab.piece(token, special=True) for token in chunk.tokens)
            tokens += [Token(piece.decode("utf-8", "replace")) for piece in pieces]
            continue
        part, index = next(parts), len(pictures)
        columns, rows = _grid(meta, chunk.n_tokens, part, engine.image_max_tokens)
        name, pixels = _shown(meta, part, columns, rows)
        pictures.append(Picture(name, pixels, len(tokens), columns, rows))
        tokens += [Token("", index, (i // columns, i % columns)) for i in range(chunk.n_tokens)]
    return tuple(tokens), tuple(pictures)


def _parts(chunks: Sequence[Chunk], images: Sequence[LoadedImage]) -> list[_Part]:
    """For every chunk of an image, what it is of. Equal images have equally many."""
    n_chunks = Counter(chunk.image for chunk in chunks if chunk.is_image)
    n_images = Counter(image.sha256 for image in images)
    found = []
    for image in images:
        n = n_chunks[image.sha256] // n_images[image.sha256]
        found += [_Part(image, i, n) for i in range(n)]
    return found


def _grid(meta: GgufMeta | None, n_tokens: int, part: _Part, most: int | None) -> tuple[int, int]:
    """Columns and rows: as the projector has them, else a square, else a strip."""
    if meta is not None and part.n == 1:
        height, width, _ = part.image.rgb.shape
        grid = image_grid(meta, width, height, most=most)
        if grid is not None and grid[0] * grid[1] == n_tokens:
            return grid
    side = math.isqrt(n_tokens)
    return (side, side) if side * side == n_tokens else (n_tokens, 1)


def _shown(
    meta: GgufMeta | None, part: _Part, columns: int, rows: int
) -> tuple[str, npt.NDArray[np.uint8]]:
    """The name of a part and its pixels."""
    rgb = part.image.rgb
    if part.n == 1:
        return part.image.name, _padded(rgb, columns / rows)
    name = f"{part.image.name}, part {part.index + 1} of {part.n}"
    height, width, _ = rgb.shape
    tiles = None if meta is None else tile_grid(meta, width, height)
    if tiles is None or tiles[0] * tiles[1] != part.n - 1:
        return name, np.full((8 * rows, 8 * columns, 3), 128, np.uint8)
    if part.index == part.n - 1:
        return f"{part.image.name}, whole", rgb
    row, column = divmod(part.index, tiles[0])
    top, bottom = (height * i // tiles[1] for i in (row, row + 1))
    left, right = (width * i // tiles[0] for i in (column, column + 1))
    return name, rgb[top : max(bottom, top + 1), left : max(right, left + 1)]


def _padded(rgb: npt.NDArray[np.uint8], aspect: float) -> npt.NDArray[np.uint8]:
    """A picture in the middle of a black one of another aspect (width over height)."""
    height, width, _ = rgb.shape
    wide, high = max(width, round(height * aspect)), max(height, round(width / aspect))
    result = np.zeros((high, wide, 3), np.uint8)
    top, left = (high - height) // 2, (wide - width) // 2
    result[top : top + height, left : left + width] = rgb
    return result
