"""Which caches are measured, and what a measured one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median, stdev
from typing import Any

from ecokv_local.budget import Budget
from ecokv_local.config import EvictionConfig
from ecokv_local.errors import UsageError
from ecokv_local.evaluate.variants import Policy


@dataclass(frozen=True)
class Case:
    """A cache of ``depth`` tokens, all of them or evicted to a budget; ``stock`` is measured with
    unpatched libraries.
    """

    depth: int
    policy: Policy | None = None
    budget: Budget | None = None
    stock: bool = False

    @property
    def config(self) -> EvictionConfig:
        """How it is evicted; nothing is for the full cache."""
        if self.policy is None:
            return EvictionConfig()
        return replace(self.policy.config, budget=self.budget)


@dataclass(frozen=True)
class Row:
    """One case, measured. Speeds are of decoding, mean and standard deviation over repetitions;
    ``prefill_tokens_per_s`` is of one reading of the whole depth. Ratios are medians over the
    repetitions: to the full cache of the same depth, to the full cache of a prompt as long as the
    budget, and to the unpatched libraries; None where there is nothing to compare with.
    """

    cache: str
    policy: str
    budget: str
    depth: int
    n_kept: int
    prefill_tokens_per_s: float
    features_ms: float
    plan_ms: float
    apply_ms: float
    decode_tokens_per_s: float
    decode_sd: float
    repetitions: int
    kv_bytes: int
    kv_ratio: float | None = None
    decode_over_full: float | None = None
    decode_over_short: float | None = None
    decode_over_stock: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON and CSV."""
        return asdict(self)


@dataclass
class Measured:
    """A case while it is measured."""

    case: Case
    n_kept: int = 0
    kv_bytes: int = 0
    features_ms: float = 0.0
    plan_ms: float = 0.0
    apply_ms: float = 0.0
    speeds: tuple[float, ...] = ()


def cases(
    depths: Sequence[int],
    policies: Sequence[Policy],
    budgets: Sequence[Budget],
    *,
    stock: bool = False,
) -> list[Case]:
    """Every depth in full, and evicted by every policy to every budget; the short prompts that the
    budgets are compared with. Raises UsageError for doubles and BudgetError as ``EvictionConfig``.
    """
    for name, values in (("depth", depths), ("policy", policies), ("budget", budgets)):
        if len(set(values)) < len(values):
            raise UsageError(f"a {name} is asked for twice", hint="name each one once")
    found = [Case(depth) for depth in depths]
    for policy in policies if budgets else ():
        for budget in budgets:
            found += [Case(depth, policy, budget) for depth in depths]
    short = {int(b.value) for b in budgets if b.unit == "pairs"}
    found += [Case(n) for n in sorted(short) if n not in depths]
    if stock:
        found += [Case(depth, stock=True) for depth in depths]
    for case in found:
        if case.config.enabled:
            case.config.pairs(case.depth, 1 << 10)  # refused before anything is read
    return sorted(found, key=lambda c: (c.stock, c.policy is not None, c.depth))


def rows(measured: Sequence[Measured], prefill: dict[int, float], cache: str) -> list[Row]:
    """Rows with their ratios; cases without a repetition are left out."""
    whole = {m.case: m for m in measured if m.speeds}
    return [_row(m, whole, prefill, cache) for m in whole.values()]


def _row(m: Measured, whole: dict[Case, Measured], prefill: dict[int, float], cache: str) -> Row:
    case = m.case
    full = whole.get(Case(case.depth))
    short = stock = None
    if case.budget is not None and case.budget.unit == "pairs":
        short = whole.get(Case(int(case.budget.value)))
    if not case.stock:
        stock = whole.get(Case(case.depth, stock=True))
    return Row(
        cache=cache,
        policy=_name(case),
        budget="-" if case.budget is None else str(case.budget),
        depth=case.depth,
        n_kept=m.n_kept,
        prefill_tokens_per_s=round(prefill.get(case.depth, 0.0), 2),
        features_ms=round(m.features_ms, 3),
        plan_ms=round(m.plan_ms, 3),
        apply_ms=round(m.apply_ms, 3),
        decode_tokens_per_s=round(fmean(m.speeds), 2),
        decode_sd=round(stdev(m.speeds), 2) if len(m.speeds) > 1 else 0.0,
        repetitions=len(m.speeds),
        kv_bytes=m.kv_bytes,
        kv_ratio=None if full is None or not full.kv_bytes else _round(m.kv_bytes / full.kv_bytes),
        decode_over_full=_ratio(m, full),
        decode_over_short=_ratio(m, short),
        decode_over_stock=_ratio(m, stock),
    )


def _name(case: Case) -> str:
    if case.policy is not None:
        return case.policy.label
    return "stock" if case.stock else "full"


def _ratio(m: Measured, base: Measured | None) -> float | None:
    """Median over the repetitions, which took turns."""
    if base is None or base is m:
        return None
    return _round(median(a / b for a, b in zip(m.speeds, base.speeds, strict=False)))


def _round(value: float) -> float:
    return round(value, 4)
