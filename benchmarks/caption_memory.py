"""Resident memory over many images: the slope in bytes an image, after the first hundred.

    python benchmarks/caption_memory.py [--images 2000] [-m MODEL --mmproj FILE]

Without a model the built-in one is used. Images are generated scenes, written beforehand.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def slope(results: Iterable[Any], skip: int = 100) -> float:
    """Bytes an image: the least-squares line through the resident memory after each result."""
    from ecokv_local.caption.progress import resident_bytes

    sizes = []
    for result in results:
        assert result.ok, result.error
        sizes.append(resident_bytes() or 0)
    values = np.array(sizes[skip:], float)
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("--mmproj", type=Path)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--budget", default=None)
    args = parser.parse_args()

    from caption_kill import draw_scenes

    from ecokv_local import Engine, EvictionConfig
    from ecokv_local.caption import caption
    from ecokv_local.caption.progress import resident_bytes

    with tempfile.TemporaryDirectory() as name, Engine(args.model, args.mmproj) as engine:
        draw_scenes(Path(name), args.images)
        results = caption(
            [name],
            engine=engine,
            parallel=args.parallel,
            max_tokens=args.max_tokens,
            eviction=EvictionConfig(budget=args.budget),
        )
        per_image = slope(results, skip=min(100, args.images // 2))
    figures = {
        "images": args.images,
        "bytes_per_image": round(per_image, 1),
        "kib_per_image": round(per_image / 1024, 3),
        "resident_mib": round((resident_bytes() or 0) / 2**20, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
