"""`ecokv eval`: what a budget costs in quality, on made test sets or the user's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecokv_cli import engines, tables
from ecokv_cli.errors import INTERRUPTED, OK, SOME_FAILED, usage
from ecokv_cli.eval_options import EVAL
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.options import BY_NAME, MODEL, OUTPUT, PROMPT, RUNTIME
from ecokv_cli.output import Output
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings

if TYPE_CHECKING:
    from ecokv_local import Engine
    from ecokv_local.evaluate.items import Item
    from ecokv_local.evaluate.suite import Evaluation, Plan
    from ecokv_local.evaluate.table import Row
    from ecokv_local.evaluate.variants import When

_LEFT_OUT = (
    "image",
    "prompt",
    "system",
    "max_tokens",
    "cache_type_k",
    "cache_type_v",
    "no_stream",
    "stats",
)
_OWN: dict[str, dict[str, Any]] = {"json": {"help": "One JSON object."}}
_FOLDER = "ecokv-eval"
_OUTPUT = replace(
    BY_NAME["output"],
    metavar="FOLDER",
    help=f"Answers, tables and pictures; a broken off run goes on from there [{_FOLDER}].",
    group="Output",
    many=False,
)

NAME = "eval"
GROUPS = (*chosen((*EVAL, *MODEL, *PROMPT, *RUNTIME, *OUTPUT), _OWN, _LEFT_OUT), _OUTPUT)
ARGUMENT = ("[FILE...]", "Own test sets, JSONL: image, question, answers (see docs/evaluation.md).")
HELP = """Measure answer quality against budget, for every policy.

Reads every prompt once and answers it from the full cache and from each evicted one. Prints a table
with intervals and paired tests, and writes JSON, Markdown, PNG and HTML. Needs the extra `report`.
"""
EPILOG = "The table is explained in docs/evaluation.md."

_COUNT = 50


def run(settings: Settings, out: Output, files: list[str] | None) -> int:
    """Evaluate; returns the exit code."""
    from ecokv_local.evaluate import suite
    from ecokv_local.evaluate.data import load_items
    from ecokv_local.report import require_report

    require_report()
    own = [item for file in files or [] for item in load_items(file)]
    plan = _plan(settings)
    folder = settings.get("output", _FOLDER)
    out.status("loading the model")
    with Interrupts(lambda: None) as interrupts:
        found = suite.run(
            lambda type_k, type_v: engines.open_engine(
                settings, out.status, cache_type_k=type_k, cache_type_v=type_v
            ),
            lambda engine: [*own, *_made(settings, engine, own)],
            plan,
            folder,
            progress=out.progress,
            stopped=lambda: interrupts.pressed,
        )
    paths = suite.save(found, plan, folder, f"Answer quality of {_model(settings)}")
    out.still()
    for name, message in found.errors.items():
        out.warn(f"{name}: {message}")
    _show(settings, out, found, plan, paths)
    if not found.complete:
        out.warn(f"stopped: run it again to go on; what is done is in {folder}")
        return INTERRUPTED
    return SOME_FAILED if found.errors else OK


def _plan(settings: Settings) -> Plan:
    from ecokv_local.budget import Budget
    from ecokv_local.evaluate.suite import LADDER, Plan
    from ecokv_local.evaluate.variants import Policy

    policies = settings.get("policies") or [Policy.parse(n) for n in ("ecokv", "streaming")]
    budgets = settings.get("budgets") or [Budget.parse(b) for b in ("5%", "10%", "20%", "50%")]
    labels = [policy.label for policy in policies]
    baseline = settings.get("baseline", labels[0])
    if baseline not in labels:
        raise usage(
            f"{settings.where('baseline')} {baseline!r} is not compared",
            f"choose from {', '.join(labels)}, or add it to --policies",
        )
    if settings.get("pick") is not None:
        policies = policies[:1]
        if settings.get("budgets") is None:
            budgets = [Budget(percent, "percent") for percent in LADDER]
    evicted: dict[str, tuple[When, ...]] = {
        "yes": ("after",),
        "no": ("before",),
        "both": ("after", "before"),
    }
    whens: tuple[When, ...] = evicted[settings.get("query_aware", "yes")]
    if settings.get("as_chat", False):
        whens = tuple("chat" if when == "after" else when for when in whens)
    n_ctx = settings.get("ctx_size")
    return Plan(
        tuple(policies),
        tuple(budgets),
        whens,
        tuple(settings.get("cache_types") or [("f16", "f16")]),
        equal_bytes=settings.get("equal_bytes", False),
        baseline=baseline,
        n_ctx=n_ctx or None,
    )


def _made(settings: Settings, engine: Engine, own: list[Item]) -> list[Item]:
    """Items that are made: those asked for, or without own ones 50 of each that can be done."""
    from ecokv_local.evaluate.builtin import SEEING, TASKS
    from ecokv_local.evaluate.suite import builtin_items

    asked = settings.get("tasks")
    if asked is None:
        can = [name for name in TASKS if engine.has_vision or name not in SEEING]
        asked = [] if own else [(name, None) for name in can]
    counts = {name: count or _COUNT for name, count in asked}
    return builtin_items(counts, settings.get("split", "test"), sees=engine.has_vision)


def _model(settings: Settings) -> str:
    model = settings.get("hf_repo") or settings.get("model")
    return Path(model).name if model else "the built-in model"


# ---- what is printed


def _show(
    settings: Settings, out: Output, found: Evaluation, plan: Plan, paths: list[Path]
) -> None:
    from ecokv_local.evaluate.suite import pick
    from ecokv_local.evaluate.table import AGAINST, HEADER, cells

    whole = [row for row in found.rows if row.kind == "all"]
    target = settings.get("pick")
    picked = {} if target is None else pick(found.rows, target)
    if out.as_json:
        record: dict[str, Any] = {"files": [str(path) for path in paths]}
        record |= {"complete": found.complete, "errors": found.errors}
        record["rows"] = [row.to_dict() for row in found.rows]
        if target is not None:
            record["pick"] = {t: row.to_dict() if row else None for t, row in picked.items()}
        out.record(record)
        return
    against = len(plan.policies) > 1
    header = [*HEADER, *(AGAINST if against else ())]
    title = f"{_model(settings)}: share of right answers"
    if whole:
        lines = [cells(row, against=against) for row in whole]
        tables.show(title, header, lines, text_columns=4)
    for task, row in picked.items():
        print(_picked(task, row, target or 0.0))
    if not out.quiet:
        out.note(f"wrote {', '.join(str(path) for path in paths)}")


def _picked(task: str, row: Row | None, target: float) -> str:
    if row is None:
        return f"{task}: no budget of the list keeps {target:.4g} of the full score"
    interval = f"{row.retention_low:.1%} to {row.retention_high:.1%}"
    return (
        f"{task}: --budget {row.budget} keeps {row.retention:.1%} of the full score "
        f"(95 % interval {interval}, {row.n} items, {row.kept:.0f} of {row.n_prompt:.0f} KV pairs)"
    )
