"""Processor time of the numba reference for one layer, once compiled.

python benchmarks/reference_speed.py --tokens 8192 --heads 8 --size 128
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

from ecokv_local import EvictionConfig
from ecokv_local.reference import evict


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=8, help="KV heads")
    parser.add_argument("--group", type=int, default=4, help="query heads of a KV head")
    parser.add_argument("--size", type=int, default=128, help="of a head")
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    shape = (args.heads, args.tokens, args.size)
    k, v = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    q = rng.normal(size=(args.heads * args.group, 8, args.size)).astype(np.float32)
    report = {}
    for policy in ("ecokv", "snapkv"):
        config = EvictionConfig(policy)
        evict(policy, k[:, :64], v[:, :64], q, 32, config)  # compiles
        seconds = []
        for _ in range(args.rounds):
            start = time.process_time()
            evict(policy, k, v, q, args.budget, config)
            seconds.append(time.process_time() - start)
        report[policy] = round(statistics.median(seconds), 3)
    print(json.dumps({**vars(args), "cpu_seconds": report}))


if __name__ == "__main__":
    main()
