"""What the switches of the method do on real heads.

    python -m benchmarks.heads --text 10 --scenes 40 --out heads.json

For prompts of text (SmolLM2 on the project's documents) and of pictures (the built-in model on
generated scenes): redundancy of the heads, and for each variant of the
settings the relative error of the attention output and the KL of the next-token distributions, both
for what follows the prompt, as paired differences from the default with 95 % bootstrap intervals.
The validation split is for choosing, the test split for checking what was chosen.
Needs the extras `dev` and `report`.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from ecokv_local import Engine, EvictionConfig

from .capture import scene_prompts, text_prompts
from .measure import Heads

VARIANTS: dict[str, EvictionConfig] = {
    "ecokv (default)": EvictionConfig(),
    **{f"compose {c}": EvictionConfig(compose=c) for c in ("sum", "max", "prod")},
    **{f"head_weight {w}": EvictionConfig(head_weight=w) for w in ("cos", "euclid")},
    **{f"head_weight {w}": EvictionConfig(head_weight=w) for w in (0.0, 0.1, 0.25, 0.5, 1.0)},
    **{f"value_norm {v}": EvictionConfig(value_norm=v) for v in ("add", "mul")},
    **{f"window {w}": EvictionConfig(window=w) for w in (4, 16, 32)},
    **{f"recents {r}": EvictionConfig(recent=r) for r in (1, 4, 32)},
    "sinks 0": EvictionConfig(sinks=0),
    "kernel 1": EvictionConfig(kernel=1),
    "kernel 3": EvictionConfig(kernel=3),
    "kernel 1, window 16": EvictionConfig(kernel=1, window=16),
    "pooling max": EvictionConfig(pooling="max"),
    "gqa max": EvictionConfig(gqa="max"),
    "snapkv, 4 sinks": EvictionConfig("snapkv", sinks=4),
    "snapkv, 4 sinks, kernel 1": EvictionConfig("snapkv", sinks=4, kernel=1),
    "snapkv, window 32": EvictionConfig("snapkv", sinks=4, window=32),
    "critical, 4 sinks": EvictionConfig("critical", sinks=4),
    "vatp, 4 sinks": EvictionConfig("vatp", sinks=4),
    "mixkv": EvictionConfig("mixkv"),
    "tova": EvictionConfig("tova"),
    "tova+ecokv": EvictionConfig("tova+ecokv"),
    "keydiff": EvictionConfig("keydiff"),
    "euclid": EvictionConfig("euclid"),
    "streaming": EvictionConfig("streaming"),
    "random": EvictionConfig("random"),
}
BUDGETS = (32, 64, 128, 256)


def measured(heads: Heads, variants: list[str]) -> dict[str, Any]:
    """KL and output error of every variant at every budget below the prompt."""
    result: dict[str, Any] = {"name": heads.prompt.name, "kind": heads.prompt.kind}
    result["n"] = heads.prompt.n
    result["redundancy"] = heads.redundancy().round(4).tolist()
    for budget in BUDGETS:
        if budget >= heads.prompt.n:
            continue
        for name in variants:
            config = VARIANTS[name]
            if budget <= config.n_sinks + config.n_recent:
                continue
            keep = heads.keep(config, budget)
            result[f"{name}|{budget}"] = (heads.kl(keep), heads.output_error(keep))
    return result


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean with its 95 % interval."""
    rng = np.random.default_rng(0)
    found = bootstrap((values,), np.mean, n_resamples=2000, rng=rng, method="percentile")
    return float(values.mean()), *map(float, found.confidence_interval)


def table(prompts: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """A row per variant and budget: means, and differences from the default."""
    rows = []
    chosen = [p for p in prompts if p["kind"] == kind]
    for budget in BUDGETS:
        default = f"ecokv (default)|{budget}"
        for name in VARIANTS:
            both = [p for p in chosen if f"{name}|{budget}" in p and default in p]
            if len(both) < 3:
                continue
            ours = np.array([p[f"{name}|{budget}"] for p in both])
            base = np.array([p[default] for p in both])
            row: dict[str, Any] = {"kind": kind, "budget": budget, "variant": name, "n": len(both)}
            for i, what in enumerate(("kl", "error")):
                row[what] = float(ours[:, i].mean())
                if name != "ecokv (default)":
                    row[f"{what}_difference"] = interval(ours[:, i] - base[:, i])
            rows.append(row)
    return rows


def redundancy(prompts: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Quantiles over heads, of the means over prompts."""
    arrays = [p["redundancy"] for p in prompts if p["kind"] == kind]
    if not arrays:
        return {}
    heads = np.mean(arrays, axis=0).reshape(-1, 3)
    names = ("r_cos", "r_euc", "weight")
    quantiles = np.quantile(heads, [0, 0.1, 0.5, 0.9, 1], axis=0).round(3)
    return {name: quantiles[:, i].tolist() for i, name in enumerate(names)}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Markdown."""
    print("| prompts | budget | variant | KL, nats | difference | output error | difference |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        cells = []
        for what in ("kl", "error"):
            cells.append(f"{row[what]:.4f}")
            d = row.get(f"{what}_difference")
            cells.append(f"{d[0]:+.4f} [{d[1]:+.4f}, {d[2]:+.4f}]" if d else "")
        print(f"| {row['kind']} | {row['budget']} | {row['variant']} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=int, default=10, help="prompts of text")
    parser.add_argument("--length", type=int, default=1024, help="tokens of each")
    parser.add_argument("--scenes", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="first seed of the scenes")
    parser.add_argument("--split", default="validation", choices=["validation", "test"])
    parser.add_argument("--variants", nargs="*", default=[], help="default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file for everything measured")
    args = parser.parse_args()
    unknown = [v for v in args.variants if v not in VARIANTS]
    if unknown:
        parser.error(f"no variant {unknown[0]!r}; there are {', '.join(VARIANTS)}")
    variants = list(dict.fromkeys(["ecokv (default)", *(args.variants or VARIANTS)]))
    prompts: list[dict[str, Any]] = []
    with Engine(threads=args.threads, n_ctx=args.length + 512, flash_attn="on") as engine:
        for prompt in chain(
            scene_prompts(engine, args.first, args.scenes, args.split),
            text_prompts(engine, args.text, args.length, args.split),
        ):
            prompts.append(measured(Heads(prompt), variants))
            print(f"{len(prompts)}: {prompt.name}", file=sys.stderr)
    rows = [row for kind in ("text", "scene") for row in table(prompts, kind)]
    heads = {kind: redundancy(prompts, kind) for kind in ("text", "scene")}
    if args.out:
        everything = {"redundancy": heads, "table": rows, "prompts": prompts}
        args.out.write_text(json.dumps(everything))
    print_table(rows)
    print(json.dumps(heads))


if __name__ == "__main__":
    main()
