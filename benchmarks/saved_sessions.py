"""Saved sessions of the built-in model: five turns, saved, loaded by a new process, 64 tokens more.

python benchmarks/saved_sessions.py

Tells whether the tokens are those of the session that was saved, and the size of the file against
the K and V of the rows that are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from ecokv_local import Engine, EvictionConfig

SCENE = Path(__file__).resolve().parents[1] / "examples" / "scene.png"
QUESTIONS = (
    "What color is the star?",
    "Describe the picture.",
    "Tell me a long story about such a picture.",
    "Why is the sky blue? Explain it in detail.",
    "What else can you tell me about light and colors?",
)
LAST = "Go on, and tell me much more about all of it."
TOKENS = 64
CHILD = f"""
import json, sys
from time import perf_counter
from ecokv_local import Engine
with Engine(threads=int(sys.argv[2])) as engine:
    start = perf_counter()
    session = engine.load_session(sys.argv[1])
    seconds = perf_counter() - start
    print(json.dumps([session.answer({LAST!r}, max_tokens={TOKENS}).text, seconds]))
"""


def main(threads: int = 2) -> int:
    """Print a row for each budget; 1 if a loaded session went on with other tokens."""
    wrong = 0
    print("budget  rows  K and V  file     of it   save     load     64 tokens")
    with Engine(threads=threads) as engine, tempfile.TemporaryDirectory() as folder:
        for budget in (64, 256, 512):
            session = engine.session(eviction=EvictionConfig(budget=budget))
            for i, question in enumerate(QUESTIONS):
                session.answer(question, [SCENE] if i == 0 else [], max_tokens=120)
            path = Path(folder) / f"{budget}.ekv"
            start = perf_counter()
            size = session.save(path)
            saving = perf_counter() - start
            n_rows, held = session.n_rows, session.stats()["kv_bytes"]
            child = [sys.executable, "-c", CHILD, str(path), str(threads)]
            done = subprocess.run(child, capture_output=True, check=True)
            text, loading = json.loads(done.stdout.splitlines()[-1])
            same = text == session.answer(LAST, max_tokens=TOKENS).text
            wrong += not same
            print(
                f"{budget:<7} {n_rows:<5} {held / 2**20:.2f} MiB {size / 2**20:.2f} MiB "
                f"{size / held:.3f}  {saving * 1e3:4.0f} ms  {loading * 1e3:4.0f} ms  "
                f"{'equal' if same else 'DIFFERENT'}"
            )
            session.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
