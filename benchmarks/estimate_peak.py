"""`ecokv estimate` against what is allocated while a long prompt is read.

    python benchmarks/estimate_peak.py [-m FILE] [--tokens 3000] [--budget 256]

Bytes of K and V by the header of the model alone, and the most that the buffers hold, asked for
after every step of a prompt that is read whole, and in parts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ecokv_local import Engine, EvictionConfig
from ecokv_local.estimate import estimate

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--budget", default="256")
    args = parser.parse_args()
    text = " ".join((ROOT / "README.md").read_text().split() * 8)
    with Engine(args.model, n_ctx=8192) as engine:
        while len(engine.vocab.tokenize(text)) > args.tokens:
            text = text[: int(len(text) * 0.995)]
        for prefill in ("full", "whole", "chunked"):
            eviction = EvictionConfig()
            if prefill != "full":
                eviction = EvictionConfig(budget=args.budget, prefill=prefill)  # type: ignore[arg-type]
            session = engine.session(eviction=eviction)
            peak, answer = session.context.kv_bytes(), None
            for event in session.ask(text, max_tokens=16):
                peak, answer = max(peak, session.context.kv_bytes()), event.answer
            assert answer is not None
            after = session.context.kv_bytes()
            session.close()
            found = estimate(
                engine.meta, n_ctx=8192, eviction=eviction, n_text_tokens=answer.n_prompt
            )
            guess = {"full": found.kv_bytes_full, "whole": found.kv_bytes_whole}
            guess |= {"chunked": found.kv_bytes_chunked}
            line = {"prefill": prefill, "n_prompt": answer.n_prompt, "peak_mib": peak / 2**20}
            line["difference"] = f"{(guess[prefill] or 0) / peak - 1:+.2%}"
            if found.kv_bytes_after is not None:
                line["after_mib"] = after / 2**20
                line["difference_after"] = f"{found.kv_bytes_after / after - 1:+.2%}"
            print(json.dumps(line))


if __name__ == "__main__":
    main()
