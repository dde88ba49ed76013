"""`ecokv explain`: what stayed of a prompt, and why, as pictures and a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecokv_cli import engines, inputs, tables
from ecokv_cli.errors import OK, usage
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.options import BY_NAME, EVICTION, MODEL, OUTPUT, PROMPT, RUNTIME
from ecokv_cli.output import Output
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings

if TYPE_CHECKING:
    from ecokv_local.explain.reading import Explanation

_LEFT_OUT = ("slack", "image_budget", "protect", "prefill", "no_stream", "stats")
_OWN: dict[str, dict[str, Any]] = {
    "budget": {"help": "A budget to look at, beside those of --budgets."},
    "json": {"help": "One JSON object."},
}
_FOLDER = "ecokv-explain"
_BUDGETS = replace(
    BY_NAME["budgets"], help="Budgets of the slider: 32,10%,2MiB [10%,20%,50%].", group="Eviction"
)
_OUTPUT = replace(
    BY_NAME["output"],
    metavar="FOLDER",
    help=f"Where the page and the pictures go [{_FOLDER}].",
    group="Output",
    many=False,
)

NAME = "explain"
GROUPS = (
    *chosen((*MODEL, *PROMPT, *RUNTIME, *EVICTION), _OWN, _LEFT_OUT),
    _BUDGETS,
    *chosen(OUTPUT, _OWN, _LEFT_OUT),
    _OUTPUT,
    BY_NAME["trace"],
)
HELP = """Show what was kept of a prompt and its pictures, and why.

Reads the prompt once, evicts it to every budget and answers from what stayed: overlays on the
pictures by layer and head, importance, diversity and the weight of every head, tokens of the text,
all in one page with a slider. Needs the extra `report`.
"""
EPILOG = "See docs/explain.md."


def run(settings: Settings, out: Output, prompt: str | None) -> int:
    """Explain one prompt; returns the exit code."""
    from ecokv_local.evaluate.variants import Policy
    from ecokv_local.explain import page, trace
    from ecokv_local.explain.reading import explain
    from ecokv_local.report import require_place, require_report

    require_report()
    folder, rows = settings.get("output", _FOLDER), settings.get("trace")
    given = inputs.gather(settings, prompt, out)
    if given.prompt is None:
        raise usage("there is no prompt to explain", "give -p TEXT, or pipe the prompt in")
    config = replace(engines.eviction_of(settings), budget=None)
    policy = Policy(config.policy, config)
    if config.policy == "none":
        raise usage("policy none evicts nothing: there is nothing to explain", "name another one")
    require_place(folder, folder=True)
    require_place(rows)
    out.status("loading the model")
    with Interrupts(), engines.open_engine(settings, out.status) as engine:
        n_ctx = settings.get("ctx_size")
        found = explain(
            engine,
            given.prompt,
            given.images,
            policy=policy,
            budgets=_budgets(settings),
            system=settings.get("system") or "",
            n_ctx=engine.n_ctx_train if n_ctx == 0 else n_ctx,
            max_tokens=engines.max_tokens(settings) or 64,
            progress=out.status,
        )
    out.status("drawing")
    paths = page.save(found, folder)
    if rows is not None:
        trace.save(found, rows)
        paths.append(Path(rows))
    out.still()
    _show(found, out, paths)
    return OK


def _budgets(settings: Settings) -> list[Any]:
    from ecokv_local.budget import Budget

    one, several = settings.get("budget"), settings.get("budgets")
    found = list(several or ([] if one else [Budget.parse(b) for b in ("10%", "20%", "50%")]))
    return found if one is None or one in found else [one, *found]


def _show(found: Explanation, out: Output, paths: list[Path]) -> None:
    cuts = [{"budget": cut.budget, "pairs": cut.pairs, "answer": cut.answer} for cut in found.cuts]
    if out.as_json:
        out.record(
            {
                "model": found.model,
                "policy": found.label,
                "n_prompt": len(found.tokens),
                "n_image_tokens": sum(token.picture is not None for token in found.tokens),
                "answer": found.answer,
                "cuts": cuts,
                "files": [str(path) for path in paths],
            }
        )
        return
    rows = [["full", str(len(found.tokens)), found.answer]]
    rows += [[cut.budget, str(cut.pairs), cut.answer] for cut in reversed(found.cuts)]
    lines = [[" ".join(cell.split()) for cell in row] for row in rows]
    tables.show(found.question, ("budget", "pairs", "answer"), lines, text_columns=3)
    if not out.quiet:
        out.note(f"wrote {', '.join(str(path) for path in paths)}")
