"""The most K and V that a long prompt holds: full cache, whole and chunked prefill with a budget.

    python benchmarks/kv_peak.py [--tokens 7500] [--budget 256]

Bytes of the buffers as they are, asked for after every step, and resident memory of a process of
its own for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def measure(prefill: str, n_tokens: int, budget: str) -> dict[str, Any]:
    """One prompt; ``prefill`` "full" is without a budget."""
    from ecokv_local import Engine, EvictionConfig
    from ecokv_local.caption.progress import resident_bytes

    config = EvictionConfig()
    if prefill != "full":
        config = EvictionConfig(budget=budget, prefill=prefill)  # type: ignore[arg-type]
    with Engine(n_ctx=8192) as engine:
        text = " ".join((ROOT / "README.md").read_text().split() * 8)
        while len(engine.vocab.tokenize(text)) > n_tokens:
            text = text[: int(len(text) * 0.995)]
        session = engine.session(eviction=config)
        before, peak, answer = resident_bytes() or 0, session.context.kv_bytes(), None
        resident = 0
        for event in session.ask(text, max_tokens=16):
            peak, answer = max(peak, session.context.kv_bytes()), event.answer
            resident = max(resident, resident_bytes() or 0)
        assert answer is not None
        return {
            "prefill": prefill,
            "n_prompt": answer.n_prompt,
            "n_kept": answer.n_kept,
            "kv_mib_peak": round(peak / 2**20, 2),
            "kv_mib_after": round(session.context.kv_bytes() / 2**20, 2),
            "resident_mib_more": round((resident - before) / 2**20, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=7500)
    parser.add_argument("--budget", default="256")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.tokens, args.budget)))
        return
    for prefill in ("full", "whole", "chunked"):
        command = [sys.executable, __file__, "--one", prefill]
        command += ["--tokens", str(args.tokens), "--budget", args.budget]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
