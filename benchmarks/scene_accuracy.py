"""Accuracy of a vision model on held-out generated scenes, full cache against budgets.

    python benchmarks/scene_accuracy.py --scenes 200 --budgets none 25%

One question a scene, the same for every budget, greedy, through the library. Prints accuracy by
kind of question, and for each budget how many answers turned from right to wrong and back.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from ecokv_local import Engine, EvictionConfig
from ecokv_local.evaluate.scenes import is_correct, questions, scene


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("--mmproj", type=Path, default=None)
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="first seed of the test split")
    parser.add_argument("--budgets", nargs="+", default=["none", "25%"])
    parser.add_argument("--policy", default="ecokv")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    right: dict[str, list[bool]] = {budget: [] for budget in args.budgets}
    kinds: list[str] = []
    kept: dict[str, list[int]] = {budget: [] for budget in args.budgets}
    with Engine(args.model, args.mmproj, threads=args.threads, n_ctx=1024) as engine:
        session = engine.session()
        for seed in range(args.first, args.first + args.scenes):
            item = scene(seed, split="test")
            rng = np.random.default_rng(seed)
            asked = questions(item, rng)
            question = asked[int(rng.integers(len(asked)))]
            kinds.append(question.kind)
            for budget in args.budgets:
                eviction = (
                    EvictionConfig()
                    if budget == "none"
                    else EvictionConfig(args.policy, budget=budget)
                )
                session.clear()
                session.configure(eviction=eviction)
                answer = session.answer(question.question, [item.image], max_tokens=64)
                right[budget].append(is_correct(question, answer.text))
                kept[budget].append(answer.n_kept)
            print(f"\r{len(kinds)}/{args.scenes}", end="", file=sys.stderr)
    print(file=sys.stderr)

    full = np.array(right[args.budgets[0]])
    count = Counter(kinds)
    report: dict[str, object] = {"policy": args.policy, "scenes": args.scenes}
    report["questions"] = dict(sorted(count.items()))
    for budget in args.budgets:
        ok = np.array(right[budget])
        report[budget] = {
            "accuracy": round(float(ok.mean()), 4),
            "by_kind": {
                kind: round(float(ok[np.array(kinds) == kind].mean()), 3) for kind in sorted(count)
            },
            "mean_kept": round(float(np.mean(kept[budget])), 1),
            "lost": int((full & ~ok).sum()),
            "gained": int((~full & ok).sum()),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
