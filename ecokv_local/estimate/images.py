"""Tokens of an image, by the header of the projector."""

from __future__ import annotations

import math
from collections.abc import Callable

from ecokv_local.gguf_meta import GgufMeta

Grid = tuple[int, int]

#: Pixels that an image of the Qwen2-VL kind is brought to, in tokens, unless the file tells.
_QWEN_TOKENS = (8, 4096)


def image_tokens(
    mmproj: GgufMeta, width: int, height: int, *, most: int | None = None
) -> int | None:
    """Tokens of an image of ``width`` x ``height`` pixels; None for projectors that cut images in
    ways that are not known here. ``most`` is --image-max-tokens.
    """
    grid = image_grid(mmproj, width, height, most=most)
    return None if grid is None else grid[0] * grid[1]


def image_grid(
    mmproj: GgufMeta, width: int, height: int, *, most: int | None = None
) -> tuple[int, int] | None:
    """Columns and rows of the tokens of an image, as ``image_tokens``."""
    grid = _KINDS.get(mmproj.projector_type or "")
    return None if grid is None else grid(mmproj, width, height, most)


def tile_grid(mmproj: GgufMeta, width: int, height: int) -> tuple[int, int] | None:
    """Columns and rows of the tiles that a picture is stretched over and cut into, row by row, the
    whole picture behind them. None for projectors that do it otherwise, or not at all.
    """
    longest, tile = _number(mmproj, "preproc_image_size", 0), _number(mmproj, "image_size", 0)
    if mmproj.projector_type != "idefics3" or not longest or not tile:
        return None
    scale = longest / max(width, height)
    even = (int(n * scale) + int(n * scale) % 2 for n in (width, height))
    columns, rows = (-(-n // tile) for n in even)
    return columns, rows


def _number(mmproj: GgufMeta, key: str, default: int) -> int:
    value = mmproj.fields.get(f"clip.vision.{key}")
    return value if isinstance(value, int) and value > 0 else default


def _patches(mmproj: GgufMeta) -> int:
    return _number(mmproj, "image_size", 0) // _number(mmproj, "patch_size", 1)


def _fixed(mmproj: GgufMeta, width: int, height: int, most: int | None) -> Grid:
    """One token a patch of an image of fixed size."""
    return _patches(mmproj), _patches(mmproj)


def _merged(mmproj: GgufMeta, width: int, height: int, most: int | None) -> Grid:
    """Patches of an image of fixed size, squares of them merged into one token."""
    side = _patches(mmproj) // _number(mmproj, "projector.scale_factor", 4)
    return side, side


def _dynamic(mmproj: GgufMeta, width: int, height: int, most: int | None) -> Grid:
    """As large as the image, within limits; four patches a token."""
    side = 2 * _number(mmproj, "patch_size", 14)
    low = _number(mmproj, "image_min_pixels", _QWEN_TOKENS[0] * side * side)
    high = _number(mmproj, "image_max_pixels", _QWEN_TOKENS[1] * side * side)
    if most is not None:
        high = most * side * side
    columns, rows = (max(1, math.floor(n / side + 0.5)) for n in (width, height))
    pixels = columns * rows * side * side
    if pixels > high:
        ratio = math.sqrt(width * height / high)
        columns, rows = (max(1, math.floor(n / ratio / side)) for n in (width, height))
    elif pixels < low:
        ratio = math.sqrt(low / (width * height))
        columns, rows = (math.ceil(n * ratio / side) for n in (width, height))
    return columns, rows


_KINDS: dict[str, Callable[[GgufMeta, int, int, int | None], Grid]] = {
    "mlp": _fixed,
    "mlp_norm": _fixed,
    "gemma3": _merged,
    "qwen2vl_merger": _dynamic,
    "qwen2.5vl_merger": _dynamic,
    "qwen3vl_merger": _dynamic,
}
