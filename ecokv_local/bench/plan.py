"""Which caches are measured: depths, policies, budgets, and the short prompts beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from ecokv_local.budget import Budget
from ecokv_local.config import EvictionConfig
from ecokv_local.errors import ModelError, UsageError
from ecokv_local.evaluate.variants import Policy
from ecokv_local.memory import kv_bytes

if TYPE_CHECKING:
    from ecokv_local.engine import Engine

DEPTHS = (512, 1024, 4096)
BUDGETS = (Budget.parse(128), Budget.parse(512))
POLICIES = ("ecokv",)
#: Tokens that every repetition decodes before the clock runs, and while it does.
N_WARM = 4
N_DECODE = 32


@dataclass(frozen=True)
class Case:
    """A cache of ``depth`` tokens, all of them or evicted to a budget; ``stock`` is measured with
    unpatched libraries. ``pairs`` is what the budget comes to, 0 if that is not known beforehand.
    """

    depth: int
    policy: Policy | None = None
    budget: Budget | None = None
    pairs: int = 0
    stock: bool = False

    @property
    def config(self) -> EvictionConfig:
        """How it is evicted; nothing is for the full cache."""
        if self.policy is None:
            return EvictionConfig()
        return replace(self.policy.config, budget=self.budget)

    @property
    def short(self) -> Case | None:
        """The full cache of a prompt as long as the budget, if the depth is more than that."""
        return Case(self.pairs) if 0 < self.pairs < self.depth else None


@dataclass(frozen=True)
class Plan:
    """What is measured, and what the user has to know about it."""

    cases: tuple[Case, ...]
    warnings: tuple[str, ...] = ()


def prepare(
    engine: Engine,
    depths: Sequence[int] | None = None,
    policies: Sequence[Policy] | None = None,
    budgets: Sequence[Budget] | None = None,
    *,
    stock: bool = False,
) -> Plan:
    """What is asked for, on this model; what was not asked for is made to fit, with a warning.

    Raises UsageError for depths beyond the context and for doubles, BudgetError for a budget that
    is too small, and ModelError if budgets are asked for and the memory cannot be evicted.
    """
    warnings: list[str] = []
    if depths is None:
        depths = _fitting(engine.n_ctx_train, warnings)
    for depth in depths:
        _check_depth(depth, engine.n_ctx_train)
    if budgets is None:
        try:
            _check_evictable(engine)
            budgets = BUDGETS
        except ModelError as error:
            warnings.append(f"the full cache alone is measured: {error.message}")
            budgets = ()
    elif budgets:
        _check_evictable(engine)
    if policies is None:
        policies = [Policy.parse(name) for name in POLICIES]
    row_bytes = kv_bytes(engine.meta, 1, *engine.cache_types)
    return Plan(cases(depths, policies, budgets, row_bytes, stock=stock), tuple(warnings))


def cases(
    depths: Sequence[int],
    policies: Sequence[Policy],
    budgets: Sequence[Budget],
    row_bytes: int = 0,
    *,
    stock: bool = False,
) -> tuple[Case, ...]:
    """Every depth in full, and evicted by every policy to every budget; the short prompts that the
    budgets are held against. ``row_bytes`` are those of a row over all layers, 0 if not known.

    Raises UsageError for doubles and BudgetError as ``EvictionConfig``.
    """
    for name, values in (("depth", depths), ("policy", policies), ("budget", budgets)):
        if len(set(values)) < len(values):
            raise UsageError(f"a {name} is asked for twice", hint="name each one once")
    evicted = []
    for policy, budget, depth in product(policies, budgets, depths):
        case = Case(depth, policy, budget)
        known = budget.unit != "bytes" or row_bytes > 0
        evicted.append(replace(case, pairs=case.config.pairs(depth, row_bytes) if known else 0))
    whole = {Case(depth) for depth in depths} | {case.short for case in evicted if case.short}
    unpatched = [Case(depth, stock=True) for depth in depths] if stock else []
    return (*sorted(whole, key=lambda case: case.depth), *evicted, *unpatched)


def cache_pairs(keys: Sequence[str] | None, values: Sequence[str] | None) -> list[tuple[str, str]]:
    """Types of K and of V, each with each; f16 where nothing is said."""
    return list(product(keys or ["f16"], values or ["f16"]))


def _fitting(n_ctx_train: int, warnings: list[str]) -> list[int]:
    """Those of the usual depths that the model was trained for, or else the deepest it was."""
    fit = [depth for depth in DEPTHS if depth <= n_ctx_train] or [n_ctx_train]
    if len(fit) < len(DEPTHS):
        left_out = ", ".join(str(depth) for depth in DEPTHS if depth not in fit)
        warnings.append(
            f"depth {left_out} is left out: the model was trained for {n_ctx_train} positions"
        )
    return fit


def _check_depth(depth: int, n_ctx_train: int) -> None:
    if not 1 <= depth <= n_ctx_train:
        raise UsageError(
            f"--depths {depth}: the model was trained for {n_ctx_train} positions",
            hint=f"use depths from 1 to {n_ctx_train}",
        )


def _check_evictable(engine: Engine) -> None:
    """Raises ModelError with the reason if the memory of the model cannot be evicted."""
    context = engine.context(min(256, engine.n_ctx_train))
    try:
        context.enable(1)
    finally:
        context.close()
