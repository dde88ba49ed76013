"""What an eviction costs, and what it buys, as ratios within one run.

    python benchmarks/eviction_cost.py

Eviction time over prefill time of a long prompt, and decode speed after it over that of the
unpatched llama.cpp of the same pin with a prompt as long as the budget. The two builds take turns,
so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from worker import N_BATCH, Worker

from ecokv_local.models import built_in
from ecokv_local.native import library_dir


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("--prompt", type=int, default=4096, help="tokens")
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--policy", default="ecokv")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="of 32 tokens each")
    args = parser.parse_args()
    model = args.model or built_in().model

    ours = Worker(library_dir(), model, args.threads)
    stock = Worker(library_dir() / "stock", model, args.threads)
    # both decode into caches of the same allocation: only the rows in use differ
    cells = args.prompt + N_BATCH
    ours.call(do="open", n_cells=cells, window=8)
    stock.call(do="open", n_cells=cells)

    prefill = ours.call(do="decode", n=args.prompt, step=N_BATCH)
    full = ours.call(do="decode", n=16) / 16
    eviction = ours.call(do="evict", budget=args.budget, policy=args.policy)
    stock.call(do="decode", n=args.budget, step=N_BATCH)

    rates: dict[str, list[float]] = {"ours": [], "stock": []}
    ratios = []
    for _ in range(args.rounds):
        pair = {
            name: 32 / worker.call(do="decode", n=32)
            for name, worker in (("ours", ours), ("stock", stock))
        }
        for name, rate in pair.items():
            rates[name].append(rate)
        ratios.append(pair["ours"] / pair["stock"])
    ours.close()
    stock.close()
    print(
        json.dumps(
            {
                "model": model.name,
                "prompt": args.prompt,
                "budget": args.budget,
                "policy": args.policy,
                "threads": args.threads,
                "prefill_s": round(prefill, 3),
                "eviction_s": round(eviction["seconds"], 4),
                "eviction_over_prefill": round(eviction["seconds"] / prefill, 5),
                "features_ms": round(eviction["t_features_ms"], 1),
                "plan_ms": round(eviction["t_plan_ms"], 1),
                "apply_ms": round(eviction["t_apply_ms"], 1),
                "decode_full_tokens_per_s": round(1 / full, 1),
                "decode_after_tokens_per_s": round(statistics.median(rates["ours"]), 1),
                "decode_stock_tokens_per_s": round(statistics.median(rates["stock"]), 1),
                "decode_after_over_stock": round(statistics.median(ratios), 4),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
