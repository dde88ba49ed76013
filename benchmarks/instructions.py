"""Instructions that the patches cost where eviction is off, counted by valgrind.

    python benchmarks/instructions.py

64 decodes in the patched and in the unpatched build; counts inside llama_decode, of all libraries
and of libllama alone. Instructions, not seconds: the same on a busy machine.
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


def count(lib_dir: Path, model: Path, n: int) -> dict[str, int]:
    """Instructions inside ``llama_decode``: of everything, and of libllama alone."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        wrapper = [
            "valgrind",
            "-q",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            "--toggle-collect=llama_decode",
        ]
        worker = Worker(lib_dir, model, 1, wrapper)
        worker.call(do="open", n_cells=256)
        worker.call(do="decode", n=n)
        worker.close()
        return parse(out)


def parse(path: Path) -> dict[str, int]:
    """Self cost by object from a callgrind file."""
    names: dict[str, str] = {}
    total = llama = 0
    current = ""
    skip = False
    for line in path.read_text().splitlines():
        if match := re.match(r"ob=\((\d+)\)(?: (.*))?", line):
            if match[2]:
                names[match[1]] = match[2]
            current = names[match[1]]
        elif match := re.match(r"cob=\((\d+)\) (.*)", line):
            names[match[1]] = match[2]
        elif line.startswith("calls="):
            skip = True  # the next line is the cost of the callee
        elif match := re.match(r"[+\-*]?\d*\s+(\d+)$", line):
            if not skip:
                total += int(match[1])
                llama += int(match[1]) * ("libllama" in current)
            skip = False
    return {"all": total, "libllama": llama}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("-n", type=int, default=64, help="decodes")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: apt install valgrind")
    model = args.model or built_in().model
    ours = count(library_dir(), model, args.n)
    stock = count(library_dir() / "stock", model, args.n)
    print(
        json.dumps(
            {
                "model": model.name,
                "decodes": args.n,
                "patched": ours,
                "stock": stock,
                "ratio_all": round(ours["all"] / stock["all"], 6),
                "ratio_libllama": round(ours["libllama"] / stock["libllama"], 6),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
