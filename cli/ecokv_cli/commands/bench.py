"""`ecokv bench`: speed and memory at depth, the full cache against budgets and policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ecokv_cli import engines
from ecokv_cli.bench_options import BENCH
from ecokv_cli.errors import INTERRUPTED, OK
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.options import MODEL, OUTPUT, RUNTIME
from ecokv_cli.output import Output
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings

if TYPE_CHECKING:
    from ecokv_local.bench.plan import Case, Row

_LEFT_OUT = (
    "mmproj",
    "max_tokens",
    "ctx_size",
    "cache_type_k",
    "cache_type_v",
    "json",
    "no_stream",
    "stats",
)

NAME = "bench"
GROUPS = chosen((*BENCH, *MODEL, *RUNTIME, *OUTPUT), {}, _LEFT_OUT)
ARGUMENT = None
HELP = """Measure speed and memory at depth, full cache against budgets.

Reads one prompt of made-up tokens, evicts it by every policy to every budget, and lets all caches
take turns at decoding. Ratios are within the run: to the full cache of the same depth, to that of a
prompt as long as the budget, and to unpatched llama.cpp.
"""
EPILOG = "The columns are explained in docs/bench.md."


def run(settings: Settings, out: Output, argument: None) -> int:
    """Measure; returns the exit code."""
    from ecokv_local.bench import run as bench
    from ecokv_local.bench.formats import FORMATS

    for name in ("plot", "html"):
        if settings.get(name) is not None:
            from ecokv_local.report import require_report

            require_report()
    cases = _cases(settings)
    found: list[Row] = []
    with Interrupts(lambda: None) as interrupts:
        for type_k, type_v in settings.get("cache_types") or [("f16", "f16")]:
            out.status("loading the model")
            with engines.open_engine(
                settings, out.status, cache_type_k=type_k, cache_type_v=type_v
            ) as engine:
                found += bench.run(
                    engine,
                    cases,
                    repetitions=settings.get("repetitions", 5),
                    stock=settings.get("compare_stock"),
                    progress=out.status,
                    stopped=lambda: interrupts.pressed,
                )
    out.still()
    print(FORMATS[settings.get("output_format", "md")](found))
    _draw(settings, found)
    peak = bench.peak_resident_bytes()
    if peak is not None:
        out.note(f"peak resident memory of the run: {peak / 2**20:,.0f} MiB")
    return INTERRUPTED if interrupts.pressed else OK


def _cases(settings: Settings) -> list[Case]:
    from ecokv_local.bench.plan import cases
    from ecokv_local.budget import Budget
    from ecokv_local.evaluate.variants import Policy

    return cases(
        settings.get("depths") or [512, 1024, 4096],
        settings.get("policies") or [Policy.parse("ecokv")],
        settings.get("budgets") or [Budget.parse(n) for n in (128, 512)],
        stock=settings.get("compare_stock") is not None,
    )


def _draw(settings: Settings, found: list[Row]) -> None:
    """The picture and the page that were asked for."""
    plot, html = settings.get("plot"), settings.get("html")
    if not found or (plot is None and html is None):
        return
    from ecokv_local.bench import pictures
    from ecokv_local.report import save_png

    if plot is not None:
        save_png(pictures.curves(found), plot)
    if html is not None:
        name = Path(settings.get("model") or "the built-in model").name
        pictures.page(found, f"Speed and memory of {name}").save(html)
