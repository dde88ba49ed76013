"""Captions survive `kill -9`: 0 lost, 0 doubled, 0 partial files, and what had to be done twice.

    python benchmarks/caption_kill.py                    # built-in model, 1,000 scenes, 200 kills
    python benchmarks/caption_kill.py --scenes 100 --kills 20 -m model.gguf --mmproj mmproj.gguf

A folder of generated scenes is captioned into sidecars, JSONL and CSV at once. The process is
killed at random moments, while it starts, recovers and works, and started again with the same
command; a last run is left alone. Then every output is compared with every other.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def draw_scenes(folder: Path, n: int) -> None:
    """Scenes of the test split as PNG files."""
    from ecokv_local.evaluate.scenes import scene

    for i in range(n):
        scene(i).image.save(folder / f"{i:05}.png")


def command(folder: Path, flags: list[str]) -> list[str]:
    """The run that is killed and repeated."""
    outputs = ["-o", str(folder / "all.jsonl"), "-o", str(folder / "all.csv"), "--sidecar"]
    return [sys.executable, "-m", "ecokv_cli", "caption", str(folder), *outputs, *flags]


def environment() -> dict[str, str]:
    """This tree first."""
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def run_and_kill(arguments: list[str], rng: random.Random, pace: float) -> bool:
    """Start, and kill after a random time; False if it had ended by itself."""
    process = subprocess.Popen(
        [*arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    assert process.stdout is not None
    if rng.random() < 0.2:  # while it starts, or recovers
        time.sleep(rng.uniform(0, 1.0))
    else:  # while it works: `pace` is how long a few pictures take
        for _ in range(rng.choice((1, 2, 4))):
            process.stdout.readline()
        time.sleep(rng.uniform(0, pace))
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    return process.wait() == -signal.SIGKILL


def check(folder: Path, n: int) -> dict[str, Any]:
    """Compare pictures, sidecars, rows and manifest; the figures, all 0 if everything is right."""
    pictures = sorted(path.name for path in folder.glob("*.png"))
    assert len(pictures) == n
    sidecars = {p.name: p.with_suffix(".txt") for p in folder.glob("*.png")}
    texts = {name: path.read_bytes().decode() for name, path in sidecars.items() if path.exists()}
    lines = (folder / "all.jsonl").read_bytes().decode().split("\n")
    jsonl = [json.loads(line) for line in lines if line]
    with (folder / "all.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    made = Counter(
        entry["file"]
        for entry in map(json.loads, _whole_lines(folder / ".ecokv-caption.jsonl"))
        if entry["status"] == "made"
    )
    partial = [
        entry["file_name"]
        for entry in jsonl
        if texts.get(entry["file_name"]) != entry["text"] + "\n"
    ]
    partial += [
        row["file_name"]
        for row in rows
        if texts.get(row["file_name"]) != row["text"].replace("\0", "") + "\n"
        and "\0" not in texts.get(row["file_name"], "")
    ]
    return {
        "lost": sum(name not in texts for name in pictures)
        + len(set(pictures) - {entry["file_name"] for entry in jsonl})
        + len(set(pictures) - {row["file_name"] for row in rows}),
        "doubled": len(jsonl)
        - len({entry["file_name"] for entry in jsonl})
        + len(rows)
        - len({row["file_name"] for row in rows}),
        "partial": len(partial) + len(list(folder.glob(".*.ecokv-tmp"))),
        "made_twice": sum(count - 1 for count in made.values()),
    }


def _whole_lines(path: Path) -> list[bytes]:
    from ecokv_local.caption.manifest import body_of

    return [body for line in path.read_bytes().split(b"\n") if (body := body_of(line))]


def kill_and_resume(
    folder: Path, n: int, kills: int, flags: list[str], *, seed: int = 0, pace: float = 0.3
) -> dict[str, Any]:
    """The whole measurement; ``folder`` holds the scenes."""
    rng = random.Random(seed)
    arguments = command(folder, flags)
    killed = 0
    for i in range(kills):
        killed += run_and_kill(arguments, rng, pace)
        for path in folder.glob("*.txt"):  # at any moment what is there is whole
            assert path.read_bytes().endswith(b"\n"), path
        if (i + 1) % 20 == 0:
            print(f"{i + 1} kills, {len(list(folder.glob('*.txt')))} captions", file=sys.stderr)
    before = len(list(folder.glob("*.txt")))
    last = subprocess.run(arguments, env=environment(), capture_output=True, check=False)
    assert last.returncode == 0, last.stderr.decode()
    return {"scenes": n, "killed": killed, "done_when_left_alone": before, **check(folder, n)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--pace", type=float, default=2.0, help="seconds that a few pictures take")
    parser.add_argument("--seed", type=int, default=0)
    args, flags = parser.parse_known_args()  # all others are for ecokv caption
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_scenes(folder, args.scenes)
        figures = kill_and_resume(
            folder, args.scenes, args.kills, flags, seed=args.seed, pace=args.pace
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
