"""Pictures of every mode, size and format: each is captioned, or fails with a reason of its own.

    python benchmarks/caption_formats.py [-m MODEL --mmproj FILE] [--sizes 1x1 12000x9000]

A format that cannot hold a mode gets the picture in the nearest mode that it holds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, features

MODES = ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "I;16"]
SIZES = [
    (1, 1),
    (1, 5000),
    (5000, 1),
    (2, 3),
    (31, 17),
    (64, 64),
    (192, 192),
    (400, 800),
    (801, 399),
    (1920, 1080),
    (4000, 3000),
    (12000, 9000),
]
FORMATS: dict[str, dict[str, Any]] = {
    "PNG": {"compress_level": 1},
    "JPEG": {},
    "WEBP": {"method": 0},
    "GIF": {},
    "BMP": {},
    "TIFF": {},
    **({"AVIF": {"speed": 10}} if features.check("avif") else {}),
}
#: Tried in this order where a format cannot hold a mode.
_NEAREST = ("RGBA", "RGB", "L")


def image_of(mode: str, size: tuple[int, int]) -> Image.Image:
    """Two fields of colour in a mode; most modes are not a conversion away from RGB."""
    image = Image.new("RGB", size, (200, 60, 30))
    image.paste((20, 90, 220), (0, 0, (size[0] + 1) // 2, (size[1] + 1) // 2))
    if mode == "LAB":
        return Image.merge("LAB", image.split())
    if mode == "I;16":
        return image.convert("I").point(lambda value: value * 256).convert("I;16")
    if mode == "PA":
        return image.convert("P").convert("PA")
    if mode in ("LA", "RGBA"):
        image.putalpha(128)
    return image.convert(mode)


def save(image: Image.Image, path: Path, kind: str) -> bool:
    """Write a file; False if the format holds neither the mode nor a near one."""
    for mode in (image.mode, *_NEAREST):
        try:
            held = image if mode == image.mode else image.convert("RGB").convert(mode)
            held.save(path, kind, **FORMATS[kind])
            return True
        except (OSError, KeyError, ValueError, SystemError):
            path.unlink(missing_ok=True)
    return False


def caption_all(
    folder: Path,
    engine: Any,
    modes: Sequence[str],
    sizes: Iterable[tuple[int, int]],
    formats: Iterable[str],
) -> dict[str, Any]:
    """One batch for each size; the counts, and the failures by reason."""
    from ecokv_local.caption import caption

    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for width, height in sizes:
        place = folder / f"{width}x{height}"
        place.mkdir()
        for mode in modes:
            image = image_of(mode, (width, height))
            for kind in formats:
                name = f"{mode.replace(';', '-')}.{kind.lower()}"
                counts["not written"] += not save(image, place / name, kind)
        counts["files"] += len(list(place.iterdir()))
        for result in caption([place], engine=engine, sidecar_name="full", max_tokens=4):
            counts["captioned" if result.ok else "failed"] += 1
            if result.error is not None:
                reasons[result.error.message.removeprefix(str(place))] += 1
        for path in place.iterdir():
            path.unlink()
        print(f"{width} x {height}: {dict(counts)}", file=sys.stderr)
    return {
        **{name: counts[name] for name in ("files", "captioned", "failed", "not written")},
        "reasons": dict(reasons),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("--mmproj", type=Path)
    parser.add_argument("--sizes", nargs="*", default=[f"{w}x{h}" for w, h in SIZES])
    parser.add_argument("--modes", nargs="*", default=MODES)
    args = parser.parse_args()

    from ecokv_local import Engine

    sizes = [tuple(map(int, size.split("x"))) for size in args.sizes]
    with tempfile.TemporaryDirectory() as name, Engine(args.model, args.mmproj) as engine:
        print(json.dumps(caption_all(Path(name), engine, args.modes, sizes, FORMATS)))


if __name__ == "__main__":
    main()
