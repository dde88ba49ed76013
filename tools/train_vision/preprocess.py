"""The pixels that mtmd feeds to a llava tower: letterboxed, bicubic, mean and deviation 0.5."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

PAD_COLOR = (122, 116, 104)
"""What the pinned mtmd pads a llava image with; it is not configurable in the GGUF."""

MEAN = (0.5, 0.5, 0.5)
DEVIATION = (0.5, 0.5, 0.5)


def letterbox(image: Image.Image, side: int) -> Image.Image:
    """Fit an image into a square as mtmd does; one that fits already stays untouched."""
    if image.size == (side, side):
        return image
    # mtmd divides and multiplies in float32; doing the same keeps sizes equal to the pixel
    scale = min(
        np.float32(side) / np.float32(image.width), np.float32(side) / np.float32(image.height)
    )
    width = min(math.ceil(np.float32(image.width) * scale), side)
    height = min(math.ceil(np.float32(image.height) * scale), side)
    square = Image.new("RGB", (side, side), PAD_COLOR)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    square.paste(resized, ((side - width) // 2, (side - height) // 2))
    return square


def to_pixels(images: Sequence[Image.Image], side: int) -> np.ndarray:
    """Letterboxed bytes [batch, side, side, 3]."""
    return np.stack([np.asarray(letterbox(image, side)) for image in images])


def normalise(pixels: np.ndarray) -> torch.Tensor:
    """Bytes to the tower's input [batch, 3, side, side]."""
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
