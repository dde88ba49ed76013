"""One conversation without an end: cells, memory and speed over many turns and images.

    python benchmarks/endless.py --turns 1000 --images 100 --budget 512

The first four turns show an image each, so that the budget is full from then on; the others are
spread over the talk. After every event of every turn the rows in use are noted: they must never
exceed the budget plus one micro-batch. Memory is the least-squares line through the resident
memory after each turn from a fifth of the turns on; a talk with an image in every turn goes before,
because decoding the first images makes the heap grow once. Speed is the median over ten turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ecokv_local import Engine, EvictionConfig
from ecokv_local.caption.progress import resident_bytes
from ecokv_local.evaluate.scenes import scene

QUESTIONS = ("What colour is it?", "And where is it?", "How many things are there?", "Go on.")


def run(
    engine: Engine,
    *,
    turns: int,
    images: int,
    eviction: EvictionConfig,
    pairs: int,
    max_tokens: int,
    warm_up: int,
    folder: Path,
) -> dict[str, Any]:
    """Talk, and measure; ``folder`` holds the images as files, as a user's would be."""
    for number in range(max(images, warm_up)):
        scene(number, "validation").image.save(folder / f"{number}.png")
    before = engine.session(eviction=eviction, n_ctx=pairs + engine.n_ubatch)
    for number in range(warm_up):
        before.answer(QUESTIONS[0], [folder / f"{number}.png"], max_tokens=max_tokens)
    before.close()
    session = engine.session(eviction=eviction, n_ctx=pairs + engine.n_ubatch)
    n_first = min(4, images)
    shown = {*range(n_first), *np.linspace(n_first, turns - 1, images - n_first).astype(int)}
    most, n_shown = 0, 0
    sizes, rates, times = [], [], []
    for turn in range(turns):
        pictures = []
        if turn in shown:
            pictures = [folder / f"{n_shown}.png"]
            n_shown += 1
        start = time.perf_counter()
        text = QUESTIONS[turn % len(QUESTIONS)]
        for event in session.ask(text, pictures, max_tokens=max_tokens):
            most = max(most, session.n_rows)
            if event.answer is not None:
                rates.append(event.answer.tokens_per_s)
        times.append((time.perf_counter() - start) * 1e3)
        sizes.append(resident_bytes() or 0)
        print(f"\r{turn + 1}/{turns}", end="", file=sys.stderr)
    print(file=sys.stderr)
    warm = turns // 5
    slope = np.polyfit(np.arange(turns - warm), np.array(sizes[warm:], float), 1)[0]

    def around(values: list[float], turn: int) -> float:
        return statistics.median(v for v in values[turn - 1 : turn + 9] if v > 0)

    late = min(500, turns - 10)
    report = {
        "turns": turns,
        "images": n_shown,
        "n_position": session.n_position,
        "rows_most": most,
        "rows_limit": pairs + engine.n_ubatch,
        "kib_per_turn": round(float(slope) / 1024, 3),
        "resident_mib": round(sizes[-1] / 2**20, 1),
        "tokens_per_s_turn_5": around(rates, 5),
        f"tokens_per_s_turn_{late}": around(rates, late),
        "speed_ratio": round(around(rates, late) / around(rates, 5), 3),
        "turn_ms_5": round(around(times, 5), 1),
        "turn_ms_last": round(around(times, turns - 10), 1),
    }
    session.close()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("--mmproj", type=Path, default=None)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--image-budget", default=None)
    parser.add_argument("--policy", default="ecokv")
    parser.add_argument("--warm-up", type=int, default=200, help="turns")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("-ub", "--ubatch-size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    eviction = EvictionConfig(args.policy, budget=args.budget, image_budget=args.image_budget)
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine(args.model, args.mmproj, threads=args.threads, n_ubatch=args.ubatch_size) as engine,
    ):
        report = run(
            engine,
            turns=args.turns,
            images=args.images,
            eviction=eviction,
            pairs=args.budget,
            max_tokens=args.max_tokens,
            warm_up=args.warm_up,
            folder=Path(folder),
        )
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
