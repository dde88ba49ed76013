"""How long `ecokv eval --pick 99%` takes on a test set of the user's own.

    python benchmarks/pick.py --items 50

Writes pictures and questions of the validation split as JSON lines, as a user would have them, runs
the command in a new process, and prints its answer and the seconds it took. The built-in model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from ecokv_local.evaluate.builtin import TASKS


def write(folder: Path, n: int) -> Path:
    """``n`` questions with a picture each; those with answers to compare with alone."""
    path = folder / "own.jsonl"
    items = (item for item in TASKS["scenes"]("validation", 0) if item.answers)
    with path.open("w", encoding="utf-8") as file:
        for i, item in enumerate(islice(items, n)):
            name = f"{i:03}.png"
            item.images()[0].save(folder / name)
            line = {"image": name, "question": item.question, "answers": list(item.answers)}
            file.write(json.dumps(line | {"metric": item.metric}) + "\n")
    return path


def main() -> None:
    """Print seconds, and what the command printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--target", default="99%")
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        own = write(folder, args.items)
        command = [str(Path(sys.executable).with_name("ecokv")), "eval", str(own)]
        command += ["--pick", args.target, "-o", str(folder / "out")]
        start = time.perf_counter()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - start
    print(done.stdout)
    print(f"{args.items} items: {seconds:.0f} s")


if __name__ == "__main__":
    main()
