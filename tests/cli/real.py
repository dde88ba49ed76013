"""Ways to run `ecokv chat` over the real engine, and what to expect of its errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import ROOT, Terminal, environment

ECOKV = [sys.executable, "-m", "ecokv_cli"]
SCENE = ROOT / "examples" / "scene.png"
QUESTION = "What color is the star?"


@dataclass(frozen=True)
class Done:
    """How a run ended, and its output as it was written, line ends included."""

    returncode: int
    stdout: str
    stderr: str


def chat(*arguments: Any, **more: str) -> Done:
    """Run `ecokv chat` to its end, on two threads and without input."""
    done = subprocess.run(
        [*ECOKV, "chat", *map(str, arguments), "-t", "2"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment(GOMP_SPINCOUNT="0", **more),
        timeout=120,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def terminal(*arguments: Any) -> Terminal:
    """Start `ecokv chat` on a pseudo-terminal, a dumb one: what it shows is what it wrote."""
    arguments = (*map(str, arguments), "-t", "2")
    return Terminal([*ECOKV, "chat", *arguments], GOMP_SPINCOUNT="0", TERM="dumb")


def failed(done: Done, code: int, *words: str) -> None:
    """It ended with `code`, said `words` in one message with a hint, and nothing else."""
    assert done.returncode == code, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and "\n hint: " in done.stderr, done.stderr
    assert done.stderr.count("error: ") == 1
    for word in words:
        assert word in done.stderr, done.stderr


def beginning(path: Path, source: Path, size: int) -> Path:
    """A copy of a file that ends after `size` bytes."""
    with source.open("rb") as stream:
        path.write_bytes(stream.read(size))
    return path
