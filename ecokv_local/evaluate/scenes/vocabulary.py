"""Everything that can appear in a scene, by name."""

from __future__ import annotations

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (214, 32, 32),
    "green": (34, 150, 52),
    "blue": (34, 72, 214),
    "yellow": (246, 220, 40),
    "orange": (244, 132, 20),
    "purple": (126, 44, 168),
    "pink": (250, 150, 196),
    "brown": (122, 74, 34),
    "black": (16, 16, 16),
    "white": (250, 250, 250),
    "gray": (128, 128, 128),
}

SHAPES: tuple[str, ...] = (
    "circle",
    "square",
    "triangle",
    "star",
    "cross",
    "diamond",
    "heart",
    "ring",
)

WORDS: tuple[str, ...] = (
    "cat",
    "dog",
    "sun",
    "tree",
    "car",
    "book",
    "fish",
    "bird",
    "milk",
    "door",
    "moon",
    "king",
    "stop",
    "open",
    "exit",
    "house",
    "apple",
    "bus",
    "park",
    "ice",
    "map",
    "egg",
    "key",
    "hat",
)

POSITIONS: tuple[str, ...] = (
    "top left",
    "top",
    "top right",
    "left",
    "center",
    "right",
    "bottom left",
    "bottom",
    "bottom right",
)


def plural(shape: str) -> str:
    """English plural of a shape name."""
    return shape + ("es" if shape.endswith("s") else "s")


def position_name(x: float, y: float) -> str:
    """Name the third of the image that holds a point given in fractions of width and height."""
    return POSITIONS[min(2, int(y * 3)) * 3 + min(2, int(x * 3))]
