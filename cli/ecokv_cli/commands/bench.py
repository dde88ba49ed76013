"""`ecokv bench`: speed and memory at depth, the full cache against budgets and policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ecokv_cli import engines
from ecokv_cli.bench_options import BENCH, BENCH_WORDS
from ecokv_cli.errors import INTERRUPTED, OK, usage
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.options import MODEL, OUTPUT, RUNTIME
from ecokv_cli.output import Output
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings

if TYPE_CHECKING:
    from ecokv_local.bench.rows import Row

_LEFT_OUT = ("mmproj", "max_tokens", "ctx_size", "json", "no_stream", "stats")

NAME = "bench"
GROUPS = chosen((*BENCH, *MODEL, *RUNTIME, *OUTPUT), BENCH_WORDS, _LEFT_OUT)
ARGUMENT = None
HELP = """Measure speed and memory at depth, full cache against budgets.

Reads one prompt, evicts it by every policy to every budget, and lets all caches take turns at
decoding. Ratios are within the run: to the full cache of the same depth, to that of a prompt as
long as the budget, and to unpatched llama.cpp.
"""
EPILOG = "The columns are explained in docs/bench.md."


def run(settings: Settings, out: Output, argument: None) -> int:
    """Measure; returns the exit code."""
    types = _cache_types(settings)
    places = [settings.get(name) for name in ("plot", "html") if settings.get(name) is not None]
    if places:
        from ecokv_local.report import require_place, require_report

        require_report()
        for place in places:
            require_place(place)
    found: list[Row] = []
    try:
        with Interrupts(lambda: None) as interrupts:
            for pair in types:
                if not interrupts.pressed:
                    found += _measure(settings, out, pair, interrupts)
    except Exception:
        if found:  # those of the cache types before
            _show(settings, out, found)
        raise
    _show(settings, out, found)
    _draw(settings, found)
    return INTERRUPTED if interrupts.pressed else OK


def _cache_types(settings: Settings) -> list[tuple[str, str]]:
    from ecokv_local.bench.plan import cache_pairs

    pairs: list[tuple[str, str]] | None = settings.get("cache_types")
    keys, values = settings.get("cache_type_k"), settings.get("cache_type_v")
    if pairs and (keys or values):
        raise usage(
            f"{settings.where('cache_types')} and -ctk or -ctv say the same thing",
            "give either pairs (--cache-types f16,q8_0/q4_0) or lists (-ctk f16,q8_0 -ctv f16)",
        )
    return pairs or cache_pairs(keys, values)


def _measure(
    settings: Settings, out: Output, types: tuple[str, str], interrupts: Interrupts
) -> list[Row]:
    from ecokv_local.bench.plan import prepare
    from ecokv_local.bench.run import run as measure

    out.status("loading the model")
    key, value = types
    with engines.open_engine(settings, out.status, cache_type_k=key, cache_type_v=value) as engine:
        plan = prepare(
            engine,
            settings.get("depths"),
            settings.get("policies"),
            settings.get("budgets"),
            stock=settings.get("compare_stock") is not None,
        )
        for warning in plan.warnings:
            out.warn(warning)
        return measure(
            engine,
            plan.cases,
            repetitions=settings.get("repetitions", 5),
            stock=settings.get("compare_stock"),
            progress=lambda text: out.progress(f"{key}/{value}: {text}"),
            stopped=lambda: interrupts.pressed,
        )


def _show(settings: Settings, out: Output, found: list[Row]) -> None:
    from ecokv_local.bench.formats import FORMATS

    out.still()
    text = FORMATS[settings.get("output_format", "md")](found)
    if text:
        print(text, flush=True)


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
        name = Path(settings.get("hf_repo") or settings.get("model") or "the built-in model").name
        pictures.page(found, f"Speed and memory of {name}").save(html)
