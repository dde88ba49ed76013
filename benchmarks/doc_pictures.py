"""The pictures of docs/explain.md and docs/analysis.md, made with the built-in model.

    python benchmarks/doc_pictures.py

Three scenes of the test split (an answer that survives, one that dies, several policies), and the
analysis of twelve scenes of the validation split. Prints what was answered.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ecokv_local import Engine
from ecokv_local.analyze import pictures as analysis
from ecokv_local.analyze.reading import analyze
from ecokv_local.analyze.report import head_rows, kept_rows
from ecokv_local.budget import Budget
from ecokv_local.evaluate.scenes import scene
from ecokv_local.evaluate.suite import builtin_items
from ecokv_local.evaluate.variants import Policy
from ecokv_local.explain import pictures
from ecokv_local.explain.reading import Explanation, explain
from ecokv_local.report import save_png

OUT = Path(__file__).resolve().parents[1] / "docs" / "pictures"
#: file name -> seed of the scene, question, budgets
SCENES: dict[str, tuple[int, str, Sequence[str]]] = {
    "explain-survives": (9, "What word is shown?", ("5%", "10%", "20%")),
    "explain-dies": (34, "What number is shown?", ("5%", "10%", "20%")),
}
COMPARED = (193, "What is in the top?", "10%")
POLICIES = ("ecokv", "snapkv", "keydiff", "streaming", "random")


def _explained(
    engine: Engine, seed: int, question: str, budgets: Sequence[str], policy: str
) -> Explanation:
    found = explain(
        engine,
        question,
        [scene(seed, "test").image],
        policy=Policy.parse(policy),
        budgets=[Budget.parse(budget) for budget in budgets],
    )
    said = ", ".join(f"{cut.budget}: {cut.answer!r}" for cut in found.cuts)
    print(f"scene {seed}, {policy}: full {found.answer!r}, {said}")
    return found


def explained(engine: Engine) -> None:
    """The three pictures of docs/explain.md."""
    for name, (seed, question, budgets) in SCENES.items():
        found = _explained(engine, seed, question, budgets, "ecokv")
        save_png(pictures.overview(found), OUT / f"{name}.png", dpi=80)
    seed, question, budget = COMPARED
    several = [_explained(engine, seed, question, [budget], policy) for policy in POLICIES]
    save_png(pictures.compared(several), OUT / "explain-policies.png", dpi=80)


def analysed(engine: Engine, prompts: int) -> None:
    """The pictures and numbers of docs/analysis.md."""
    names = ("ecokv", "snapkv", "keydiff", "euclid", "streaming", "random")
    found = analyze(
        engine,
        builtin_items({"scenes": prompts}, "validation", sees=True),
        [Policy.parse(name) for name in names],
        [Budget.parse(budget) for budget in ("5%", "10%", "20%", "50%")],
    )
    drawn: dict[str, Any] = {
        "redundancy": analysis.redundancy(found),
        "correlation": analysis.correlation(found),
        "scatter": analysis.scatter(found),
        "attention": analysis.attention(found),
    }
    for name, figure in drawn.items():
        save_png(figure, OUT / f"analysis-{name}.png", dpi=80)
    for row in [*head_rows(found), *kept_rows(found)]:
        print("| " + " | ".join(row) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=12, help="scenes that are analysed; 0: none")
    args = parser.parse_args()
    with Engine() as engine:
        explained(engine)
        if args.prompts:
            analysed(engine, args.prompts)


if __name__ == "__main__":
    main()
