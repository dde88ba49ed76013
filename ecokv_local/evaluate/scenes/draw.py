"""Masks of shapes and of text, and the backgrounds they are placed on."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .vocabulary import COLORS

SUPERSAMPLE = 2
"""Masks are drawn at twice the resolution and averaged down, which smooths their edges."""

Points = list[tuple[float, float]]


def _star() -> Points:
    radii = (1.0, 0.42)
    return [
        (radii[i % 2] * math.sin(math.pi * i / 5), -radii[i % 2] * math.cos(math.pi * i / 5))
        for i in range(10)
    ]


def _cross(t: float = 0.32) -> Points:
    quarter = [(-t, -1.0), (t, -1.0), (t, -t)]
    points: Points = []
    for _ in range(4):
        points += quarter
        quarter = [(-y, x) for x, y in quarter]
    return points


def _heart() -> Points:
    points: Points = []
    for i in range(32):
        a = 2 * math.pi * i / 32
        y = 13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)
        points.append((math.sin(a) ** 3, -y / 16))
    return points


POLYGONS: dict[str, Points] = {
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "diamond": [(0, -1), (0.72, 0), (0, 1), (-0.72, 0)],
    "triangle": [(0, -1), (0.95, 0.8), (-0.95, 0.8)],
    "star": _star(),
    "cross": _cross(),
    "heart": _heart(),
}


def shape_mask(shape: str, radius: float, angle: float) -> np.ndarray:
    """Coverage (0..1) of a shape of the given radius in pixels, turned by `angle` radians."""
    side = 2 * math.ceil(radius * 1.15) + 2
    middle = side * SUPERSAMPLE / 2
    r = radius * SUPERSAMPLE
    image = Image.new("L", (side * SUPERSAMPLE, side * SUPERSAMPLE), 0)
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        r *= 0.95
        draw.ellipse((middle - r, middle - r, middle + r, middle + r), fill=255)
    elif shape == "ring":
        box = (middle - r, middle - r, middle + r, middle + r)
        draw.ellipse(box, outline=255, width=round(r * 0.36))
    else:
        cos, sin = math.cos(angle), math.sin(angle)
        points = [
            (middle + r * (x * cos - y * sin), middle + r * (x * sin + y * cos))
            for x, y in POLYGONS[shape]
        ]
        draw.polygon(points, fill=255)
    return _average(image)


@functools.lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("scenes need a Pillow with FreeType")
    return font


def text_mask(text: str, size: float, weight: float, stretch: float, slant: float) -> np.ndarray:
    """Coverage (0..1) of a text, tight around its ink.

    Pillow ships one typeface; stroke weight, width and slant vary it into bold, condensed and
    italic cuts.
    """
    font = _font(max(8, round(size * SUPERSAMPLE)))
    stroke = round(weight * size * SUPERSAMPLE)
    left, top, right, bottom = font.getbbox(text, stroke_width=stroke)
    lean = math.ceil(abs(slant) * (bottom - top))
    width, height = int(right - left) + 2 * lean + 4, int(bottom - top) + 4
    image = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(image)
    draw.text((lean + 2 - left, 2 - top), text, font=font, fill=255, stroke_width=stroke)
    if slant:
        shear = (1, slant, -slant * height / 2, 0, 1, 0)
        image = image.transform(
            image.size, Image.Transform.AFFINE, shear, Image.Resampling.BILINEAR
        )
    image = image.crop(image.getbbox())
    width = max(SUPERSAMPLE, round(image.width * stretch / SUPERSAMPLE) * SUPERSAMPLE)
    height = max(SUPERSAMPLE, round(image.height / SUPERSAMPLE) * SUPERSAMPLE)
    return _average(image.resize((width, height), Image.Resampling.BILINEAR))


def _average(image: Image.Image) -> np.ndarray:
    return np.asarray(image.reduce(SUPERSAMPLE), np.float32) / 255


def _base_color(rng: np.random.Generator, used: Sequence[str]) -> np.ndarray:
    taken = [np.array(COLORS[name], np.float32) for name in used]
    base = np.full(3, 200, np.float32)
    for _ in range(60):
        low, high, chroma = [(175, 250, 0.8), (25, 110, 0.6), (90, 200, 0.6)][
            int(np.searchsorted((0.6, 0.85), rng.random()))
        ]
        base = rng.uniform(low, high, 3).astype(np.float32)
        base = base.mean() + (base - base.mean()) * chroma
        if all(np.abs(base - other).sum() > 150 for other in taken):
            break
    return base


def background(
    rng: np.random.Generator, width: int, height: int, used: Sequence[str]
) -> np.ndarray:
    """Plain, shaded, striped or noisy ground whose colour stays away from the `used` colours."""
    image = np.empty((height, width, 3), np.float32)
    image[:] = _base_color(rng, used)
    texture = rng.random()
    across = rng.random() < 0.5
    length = width if across else height
    if texture < 0.25:
        ramp = np.linspace(-1, 1, length, dtype=np.float32) * rng.uniform(5, 18)
        image += ramp[None, :, None] if across else ramp[:, None, None]
    elif texture < 0.5:
        half = max(2, round(length / rng.choice((16, 24, 36, 48)) / 2))
        stripes = ((np.arange(length) // half) % 2).astype(np.float32) * rng.uniform(4, 14)
        image += stripes[None, :, None] if across else stripes[:, None, None]
    if rng.random() < 0.5:
        noise = rng.standard_normal((height, width, 1), dtype=np.float32)
        image += noise * np.float32(rng.uniform(1, 7))
    return image
