"""What choosing costs: features and plan of each policy over those of `snapkv`, on one cache.

    python benchmarks/policy_cost.py --tokens 4096
    python benchmarks/policy_cost.py --tokens 8192 --policies ecokv     # scratch memory

The policies take turns, so that a busy machine slows all of them. Moving the rows costs the same
for every policy and is measured once, at the end.
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--policies", nargs="+", default=["ecokv", "mixkv", "tova", "streaming"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()

    worker = Worker(library_dir(), args.model or built_in().model, args.threads)
    worker.call(do="open", n_cells=args.tokens + N_BATCH, window=8)
    worker.call(do="decode", n=args.tokens, step=N_BATCH)
    policies = ["snapkv", *args.policies]
    seconds: dict[str, list[float]] = {name: [] for name in policies}
    for _ in range(args.rounds):
        for name in policies:
            seconds[name].append(worker.call(do="choose", budget=args.budget, policy=name))
    eviction = worker.call(do="evict", budget=args.budget, policy=args.policies[0])
    worker.close()
    apply = eviction["t_apply_ms"] / 1000
    report = {
        "tokens": args.tokens,
        "budget": args.budget,
        "threads": args.threads,
        "apply_ms": round(apply * 1000, 1),
        "cache_bytes": eviction["cache_bytes"],
        "scratch_bytes": eviction["scratch_bytes"],
        "scratch_over_cache": round(eviction["scratch_bytes"] / eviction["cache_bytes"], 4),
    }
    for name in policies:
        ratios = [
            (ours + apply) / (base + apply)
            for ours, base in zip(seconds[name], seconds["snapkv"], strict=True)
        ]
        report[name] = {
            "choose_ms": round(statistics.median(seconds[name]) * 1000, 1),
            "eviction_over_snapkv": round(statistics.median(ratios), 3),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
