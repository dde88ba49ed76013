"""Instructions that the patches cost where eviction is off, counted by valgrind.

    python benchmarks/instructions.py

64 decodes in the patched and in the unpatched build: what libllama itself executes, and together
with ggml. Instructions, not seconds: the same on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from worker import Worker

from ecokv_local.models import built_in
from ecokv_local.native import library_dir

WARM = 8  # decodes before the counted ones


def count(lib_dir: Path, model: Path, n: int) -> dict[str, int]:
    """Instructions by library of a run that loads the model and decodes ``n`` tokens."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        wrapper = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}"]
        worker = Worker(lib_dir, model, 1, wrapper)
        worker.call(do="open", n_cells=256)
        worker.call(do="decode", n=n)
        worker.close()
        return parse(out)


def parse(path: Path) -> dict[str, int]:
    """Self cost of libllama and of ggml from a callgrind file."""
    names: dict[str, str] = {}
    cost = {"libllama": 0, "libggml": 0}
    current = ""
    skip = False
    for line in path.read_text().splitlines():
        if match := re.match(r"c?ob=\((\d+)\)(?: (.*))?", line):
            if match[2]:
                names[match[1]] = Path(match[2]).name
            if line.startswith("ob="):
                current = names[match[1]]
        elif line.startswith("calls="):
            skip = True  # the next line is the cost of the callee
        elif match := re.match(r"[+\-*]?\d*\s+(\d+)$", line):
            for library in cost:
                if not skip and current.startswith(library):
                    cost[library] += int(match[1])
            skip = False
    return cost


def per_decodes(lib_dir: Path, model: Path, n: int) -> dict[str, int]:
    """Instructions of ``n`` decodes: a long run less a short one, so that loading cancels out."""
    short, long = count(lib_dir, model, WARM), count(lib_dir, model, WARM + n)
    return {library: long[library] - short[library] for library in long}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("-n", type=int, default=64, help="decodes")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: apt install valgrind")
    model = args.model or built_in().model
    ours = per_decodes(library_dir(), model, args.n)
    stock = per_decodes(library_dir() / "stock", model, args.n)
    print(
        json.dumps(
            {
                "model": model.name,
                "decodes": args.n,
                "patched": ours,
                "stock": stock,
                "ratio_libllama": round(ours["libllama"] / stock["libllama"], 6),
                "ratio_with_ggml": round(sum(ours.values()) / sum(stock.values()), 6),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
