"""Read a prompt without evicting, then compare native code and reference step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ecokv_local.config import EvictionConfig
from ecokv_local.errors import UsageError
from ecokv_local.validate.policies import choose
from ecokv_local.validate.report import Report

if TYPE_CHECKING:
    from ecokv_local.engine import Engine

Progress = Callable[[str], None]

DEFAULT_BUDGET = "25%"


def require_packages() -> None:
    """Raises UsageError where the reference cannot run."""
    for package in ("numba", "gguf"):
        if find_spec(package) is None:
            raise UsageError(
                f"validating needs the package {package}, which is not installed",
                hint='pip install "ecokv-local[validate]"',
            )


def validate(
    engine: Engine,
    prompt: str,
    images: Sequence[Any] = (),
    *,
    policies: str | Sequence[str] = "ecokv",
    eviction: EvictionConfig | None = None,
    system: str | None = None,
    n_ctx: int | None = None,
    progress: Progress = lambda text: None,
) -> Report:
    """Native features, scores, kept sets and moved rows against the reference, on one prompt.

    The prompt is read whole and without eviction, through the chat template as in a conversation.
    ``policies`` are names, or ``"all"``; ``eviction`` gives the budget (25% by default), the window
    and the other switches. Every error of a session can be raised, and UsageError without these
    packages.
    A mismatch is no error: it is in the report.
    """
    require_packages()
    start = perf_counter()
    eviction = eviction or EvictionConfig(budget=DEFAULT_BUDGET)
    if eviction.budget is None:
        eviction = replace(eviction, budget=DEFAULT_BUDGET)
    configs, skipped = choose(policies, eviction)

    from ecokv_local import inspection
    from ecokv_local.validate.checks import Validation

    session = engine.session(system=system, n_ctx=n_ctx)
    try:
        context = session.context
        context.enable(eviction.window)
        answer = None
        for event in session.ask(prompt, images, max_tokens=0):
            if event.kind == "status":
                progress(event.text)
            answer = event.answer or answer
        assert answer is not None  # a turn that ends has one
        run = Validation(context, configs, progress)
        run.run()
        flash_attn, n_other = context.flash_attn, int(inspection.shape(context).n_layer_other)
    finally:
        session.close()
    told = run.policy_reports()
    warnings = [*answer.warnings, *run.warnings]
    if n_other:
        warnings.append(f"{n_other} sliding-window layers are not evicted, and not validated")
    if run.n_query < eviction.window:
        warnings.append(f"{run.n_query} queries vote, the window is {eviction.window}")
    return Report(
        model=str(engine.model_path),
        mmproj=str(engine.mmproj_path) if engine.mmproj_path else None,
        n_prompt=answer.n_prompt,
        n_image_tokens=answer.n_image_tokens,
        n_rows=run.n_rows,
        n_query=run.n_query,
        window=eviction.window,
        cache_type_k=engine.cache_type_k,
        cache_type_v=engine.cache_type_v,
        flash_attn=flash_attn,
        n_layer_other=n_other,
        layers=tuple(run.layers),
        policies=told,
        skipped=tuple(skipped),
        first_difference=run.first.difference,
        warnings=tuple(warnings),
        t_ms=round((perf_counter() - start) * 1e3, 3),
    )
