"""Pictures for tests that need any picture."""

from __future__ import annotations

import numpy as np
from PIL import Image


def noise(seed: int, size: tuple[int, int] = (96, 96)) -> Image.Image:
    """No two seeds alike; ``size`` is width and height."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)
