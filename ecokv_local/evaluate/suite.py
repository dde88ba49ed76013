"""A whole evaluation: which items, which variants, every cache type, and the files it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ecokv_local.budget import Budget
from ecokv_local.cache_types import type_number
from ecokv_local.errors import UsageError
from ecokv_local.evaluate.answers import Answers, identity_of
from ecokv_local.evaluate.builtin import SEEING, TASKS
from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.run import Result, evaluate
from ecokv_local.evaluate.table import AGAINST, HEADER, Row, cells, markdown, rows
from ecokv_local.evaluate.variants import FULL, Policy, Variant, When, grid
from ecokv_local.gguf_meta import row_bytes

if TYPE_CHECKING:
    from ecokv_local.engine import Engine

#: Budgets that `pick` tries, in percent.
LADDER = (5, 7.5, 10, 15, 20, 25, 30, 40, 50, 60, 75)


@dataclass(frozen=True)
class Plan:
    """What is evaluated. ``cache_types`` are (K, V); with ``equal_bytes`` a budget is a share of
    the bytes of the full f16 cache, whatever the type.
    """

    policies: tuple[Policy, ...]
    budgets: tuple[Budget, ...]
    whens: tuple[When, ...] = ("after",)
    cache_types: tuple[tuple[str, str], ...] = (("f16", "f16"),)
    equal_bytes: bool = False
    baseline: str = ""
    n_ctx: int | None = None

    def variants(self, type_k: str, type_v: str) -> list[Variant]:
        """All of them for a cache type."""
        if not self.equal_bytes:
            return grid(self.policies, self.budgets, self.whens)
        share = (_bytes(type_k) + _bytes(type_v)) / (2 * _bytes("f16"))
        budgets = []
        for budget in self.budgets:
            if budget.unit != "percent":
                raise UsageError(
                    f"budget {budget}: with equal bytes it has to be a share",
                    hint="write percent of the bytes of the full f16 cache, for example 25%",
                )
            if budget.value / share < 99.5:  # else all of it fits
                budgets.append(Budget(round(budget.value / share, 2), "percent"))
        return grid(self.policies, budgets, self.whens)


def _bytes(cache_type: str) -> int:
    """Bytes of a block of 32 values."""
    return row_bytes(type_number(cache_type), 32)


@dataclass
class Evaluation:
    """What came out: rows, and the items that could not be answered."""

    rows: list[Row] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    results: dict[str, list[Result]] = field(default_factory=dict)


def builtin_items(counts: Mapping[str, int], split: str, *, sees: bool) -> list[Item]:
    """The first items of the tasks that are made. Raises UsageError for one that there is not, or
    that needs a model that sees.
    """
    items: list[Item] = []
    for task, n in counts.items():
        if task not in TASKS:
            raise UsageError(
                f"task {task!r} does not exist", hint=f"choose from {', '.join(TASKS)}"
            )
        if task in SEEING and not sees:
            raise UsageError(
                f"task {task!r} needs a model that sees", hint="give --mmproj, or use --tasks text"
            )
        items += islice(TASKS[task](split, 0), n)
    return items


def run(
    open_engine: Callable[[str, str], Engine],
    items: Callable[[Engine], Sequence[Item]],
    plan: Plan,
    folder: str | Path,
    *,
    progress: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Evaluate ``items`` with an engine for each cache type; answers are kept in ``folder``."""
    found = Evaluation()
    reference: dict[str, float] | None = None
    for type_k, type_v in plan.cache_types:
        variants = plan.variants(type_k, type_v)
        cache = f"{type_k}/{type_v}"
        with open_engine(type_k, type_v) as engine:
            chosen = list(items(engine))
            answers = Answers(folder, identity_of(engine))
            try:
                results = evaluate(
                    engine,
                    chosen,
                    variants,
                    answers,
                    n_ctx=plan.n_ctx,
                    progress=lambda text, c=cache: progress(f"{c}: {text}"),  # type: ignore[misc]
                    stopped=stopped,
                )
            finally:
                answers.close()
        found.complete &= len(results) == len(chosen)
        found.results[cache] = results
        found.errors |= {r.item.name: r.error.message for r in results if r.error is not None}
        if plan.equal_bytes and reference is None:
            reference = {r.item.key: r.scores[FULL.label] for r in results if r.error is None}
        found.rows += rows(
            results, variants, cache=cache, baseline=plan.baseline, by_kind=True, full=reference
        )
    return found


def pick(found: Sequence[Row], target: float) -> dict[str, Row | None]:
    """By task, the row of the smallest budget that keeps ``target`` (a share) of the score of the
    full cache, as all larger ones do; None where none of them does.
    """
    result: dict[str, Row | None] = {}
    whole = [row for row in found if row.kind == "all" and row.policy != "full"]
    for task in dict.fromkeys(row.task for row in whole):
        best = None
        for row in sorted((r for r in whole if r.task == task), key=lambda r: -r.kept):
            if row.retention < target:
                break
            best = row
        result[task] = best
    return result


def save(found: Evaluation, plan: Plan, folder: str | Path, title: str) -> list[Path]:
    """Write results.json, table.md, accuracy.png and report.html; returns their paths.

    Raises EcokvError if a file cannot be written.
    """
    from ecokv_local.evaluate.pictures import accuracy_figure
    from ecokv_local.report import Page, to_png
    from ecokv_local.report.figure import write

    folder = Path(folder)
    paths = [folder / name for name in ("results.json", "table.md", "accuracy.png", "report.html")]
    whole = [row for row in found.rows if row.kind == "all"]
    against = bool(plan.baseline) and len(plan.policies) > 1
    report = {"title": title, "complete": found.complete, "errors": found.errors}
    report |= {"baseline": plan.baseline, "rows": [row.to_dict() for row in found.rows]}
    write(paths[0], json.dumps(report, indent=1).encode())
    write(paths[1], markdown(whole, against=against).encode())
    if not whole:
        return paths[:2]
    figure = accuracy_figure(found.rows)
    write(paths[2], to_png(figure))
    page = Page(title)
    page.paragraph(
        "Share of right answers by policy and budget; intervals are 95 % bootstrap, differences "
        f"are paired and against {plan.baseline or 'nothing'}, p by McNemar's exact test."
    )
    page.figure(figure)
    header = [*HEADER, *(AGAINST if against else ())]
    page.table(header, [cells(row, against=against) for row in whole], text_columns=4)
    kinds = [row for row in found.rows if row.kind != "all"]
    if kinds:
        page.heading("By kind of question")
        page.table(header, [cells(row, against=against) for row in kinds], text_columns=4)
    page.save(paths[3])
    return paths
