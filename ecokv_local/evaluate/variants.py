"""What is compared: policies with their settings, budgets, and when the cache is evicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ecokv_local.budget import Budget
from ecokv_local.config import POLICIES, EvictionConfig
from ecokv_local.errors import BudgetError, UsageError

When = Literal["after", "before", "chat"]

#: after: the whole prompt is read, evicted, and its last token read again, so that every token of
#: the answer comes from what stayed. before: evicted before the question is read. chat: as `ecokv
#: chat` does it, where the first token of the answer is still chosen by the full cache.
WHEN: tuple[When, ...] = ("after", "before", "chat")

_NUMBERS = ("sinks", "recent", "window", "kernel", "seed")


@dataclass(frozen=True)
class Policy:
    """A policy as it is compared; ``label`` is how the user wrote it."""

    label: str
    config: EvictionConfig

    @classmethod
    def parse(cls, text: str) -> Policy:
        """``snapkv`` or ``snapkv:window=32:sinks=4``: fields of ``EvictionConfig`` behind colons.

        Raises UsageError for an unknown policy, field or value.
        """
        name, *settings = text.strip().split(":")
        if name not in POLICIES or name == "none":
            known = ", ".join(n for n in POLICIES if n != "none")
            raise UsageError(f"policy {name!r} cannot be compared", hint=f"choose from {known}")
        return cls(text.strip(), EvictionConfig(name, **dict(_field(text, s) for s in settings)))


def _field(text: str, setting: str) -> tuple[str, Any]:
    name, equals, value = setting.partition("=")
    known = {f.name for f in fields(EvictionConfig)} - {"policy", "budget"}
    if not equals or name not in known:
        raise UsageError(
            f"policy {text!r}: {setting!r} is no setting of it",
            hint="write for example snapkv:window=32:sinks=4",
        )
    if name in _NUMBERS:
        if not value.isdigit():
            raise UsageError(f"policy {text!r}: {name} {value!r} is not a whole number")
        return name, int(value)
    try:
        return name, float(value)
    except ValueError:
        return name, value


@dataclass(frozen=True)
class Variant:
    """One way to answer an item; without a policy, the full cache."""

    policy: Policy | None = None
    budget: Budget | None = None
    when: When = "after"

    @property
    def label(self) -> str:
        """Tells variants apart, in files and in messages."""
        if self.policy is None or self.budget is None:
            return "full"
        return f"{self.policy.label}@{self.budget}/{self.when}"

    def config(self, seed: int) -> EvictionConfig:
        """Settings of the eviction; ``seed`` is the item's. Where the last token is read again,
        the one before it has to stay too: positions go on from there.
        """
        assert self.policy is not None
        config = self.policy.config
        recent = max(config.n_recent, 2 if self.when == "after" else 1)
        return replace(config, seed=seed, recent=recent)


FULL = Variant()


def grid(
    policies: Sequence[Policy], budgets: Sequence[Budget], whens: Sequence[When]
) -> list[Variant]:
    """The full cache, then every combination. Raises UsageError for doubles."""
    found = [FULL, *(Variant(p, b, w) for w in whens for p in policies for b in budgets)]
    labels = [variant.label for variant in found]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"{label} is asked for twice", hint="name each one once")
    return found


def pairs_for(budget: Budget, policies: Sequence[Policy], n_rows: int, row_bytes: int) -> int:
    """KV pairs that every policy keeps of ``n_rows``: the same for all, so that like is compared
    with like. A share below what always stays with one of them is raised to that; anything else
    below it is a BudgetError. ``row_bytes`` are bytes of one row over all layers.
    """
    most = max(policies, key=lambda policy: policy.config.budget_min())
    least, pairs = most.config.budget_min(), budget.resolve(n_rows, row_bytes)
    if budget.unit == "percent":
        least = max(least, EvictionConfig().budget_min())  # so that results can be put together
    if pairs < least and budget.unit != "percent":
        raise BudgetError(
            f"budget {budget} ({pairs} KV pairs) is below {least}, the least of {most.label}",
            hint=f"use {least} or more",
        )
    return min(n_rows, max(pairs, least))
