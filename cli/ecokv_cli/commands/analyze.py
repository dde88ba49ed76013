"""`ecokv analyze`: how redundant the heads are, and what importance and diversity see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ecokv_cli import engines, inputs, tables
from ecokv_cli.errors import OK, usage
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.options import BY_NAME, MODEL, OUTPUT, PROMPT, RUNTIME
from ecokv_cli.output import Output
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings

if TYPE_CHECKING:
    from ecokv_local import Engine
    from ecokv_local.evaluate.items import Item

_LEFT_OUT = ("max_tokens", "no_stream", "stats")
_OWN: dict[str, dict[str, Any]] = {
    "json": {"help": "One JSON object."},
    "prompt": {"help": "Prompt to analyze; without one, made scenes (or texts) are."},
}
_FOLDER = "ecokv-analysis"
_POLICIES = ("ecokv", "snapkv", "keydiff", "euclid", "streaming", "random")

NAME = "analyze"
GROUPS = (
    replace(BY_NAME["policies"], group="Analysis", help=f"Policies [{','.join(_POLICIES)}]."),
    replace(BY_NAME["budgets"], group="Analysis", help="Budgets [5%,10%,20%,50%]."),
    BY_NAME["prompts"],
    *chosen((*MODEL, *PROMPT, *RUNTIME, *OUTPUT), _OWN, _LEFT_OUT),
    replace(
        BY_NAME["output"],
        metavar="FOLDER",
        help=f"Where the page, the pictures and the numbers go [{_FOLDER}].",
        group="Output",
        many=False,
    ),
)
HELP = """Tell what the heads of a model are like, on your prompt or on made ones.

Redundancy of the heads by layer, importance against diversity, cosine against Euclidean distance,
and the attention that each policy holds at each budget, for tokens of pictures and of text. Needs
the extra `report`.
"""
EPILOG = "See docs/analysis.md."
_COUNT = 8


def run(settings: Settings, out: Output, prompt: str | None) -> int:
    """Analyze; returns the exit code."""
    from ecokv_local.analyze import report
    from ecokv_local.analyze.reading import analyze
    from ecokv_local.budget import Budget
    from ecokv_local.evaluate.variants import Policy
    from ecokv_local.report import require_place, require_report

    require_report()
    own = _own(settings, out, prompt)
    policies = settings.get("policies") or [Policy.parse(name) for name in _POLICIES]
    budgets = settings.get("budgets") or [Budget.parse(b) for b in ("5%", "10%", "20%", "50%")]
    n_ctx = settings.get("ctx_size")
    require_place(settings.get("output", _FOLDER), folder=True)
    out.status("loading the model")
    with Interrupts(), engines.open_engine(settings, out.status) as engine:
        found = analyze(
            engine,
            own or _made(settings, engine),
            policies,
            budgets,
            n_ctx=engine.n_ctx_train if n_ctx == 0 else n_ctx,
            progress=out.progress,
        )
    out.status("drawing")
    paths = report.save(found, settings.get("output", _FOLDER))
    out.still()
    if out.as_json:
        out.record(found.to_dict() | {"files": [str(path) for path in paths]})
        return OK
    what = "your prompt" if own else f"{found.n_prompts} made prompts"
    title = f"{found.model}, {what}, {found.n_tokens:.0f} tokens"
    tables.show(title, report.HEAD_HEADER, report.head_rows(found), text_columns=2)
    tables.show("what stays", report.KEPT_HEADER, report.kept_rows(found), text_columns=2)
    if not out.quiet:
        out.note(f"wrote {', '.join(str(path) for path in paths)}")
    return OK


def _own(settings: Settings, out: Output, prompt: str | None) -> list[Item]:
    """The user's prompt, if there is one."""
    from ecokv_local.evaluate.items import Item

    asked = settings.get("prompt") or prompt
    if asked is None and not settings.get("image"):
        return []
    if asked is None:
        raise usage("pictures without a prompt", "say what you would ask about them with -p")
    given = inputs.gather(settings, prompt, out)
    system = settings.get("system") or ""
    images = tuple(given.images)
    return [
        Item("own", "own", "own", str(given.prompt), ("",), system=system, images=lambda: images)
    ]


def _made(settings: Settings, engine: Engine) -> list[Item]:
    from ecokv_local.evaluate.suite import builtin_items

    task = "scenes" if engine.has_vision else "text"
    count = settings.get("prompts", _COUNT)
    return builtin_items({task: count}, "validation", sees=engine.has_vision)
