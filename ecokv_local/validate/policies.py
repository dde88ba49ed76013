"""Which policies a validation runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ecokv_local.config import POLICIES, EvictionConfig
from ecokv_local.errors import UsageError
from ecokv_local.validate.report import Skipped

ALL = "all"
#: Policies whose layers or heads have budgets of their own: a plan of one budget cannot hold them.
UNEVEN = ("pyramid", "ada")


def choose(
    policies: str | Sequence[str], eviction: EvictionConfig
) -> tuple[list[EvictionConfig], list[Skipped]]:
    """A config of every policy to run, and those left out of ``all``.

    Raises UsageError for a policy that does not exist or cannot be validated.
    """
    names = [policies] if isinstance(policies, str) else list(policies)
    if ALL in names:
        chosen = [replace(eviction, policy=n) for n in POLICIES if n != "none" and not _why_not(n)]
        skipped = [Skipped(n, _why_not(n)) for n in POLICIES if n != "none" and _why_not(n)]
        return chosen, skipped
    for name in names:
        if name == "none":
            raise UsageError(
                "policy none evicts nothing to validate", hint="choose another, or all"
            )
        if _why_not(name):
            raise UsageError(f"policy {name!r} cannot be validated: {_why_not(name)}")
    return [replace(eviction, policy=name) for name in dict.fromkeys(names)], []


def _why_not(name: str) -> str:
    from ecokv_local import native

    if name.partition("+")[0] in UNEVEN:
        return "its layers or heads have budgets of their own, and a plan has one"
    if name in POLICIES and native.lib.llama_ecokv_policy_by_name(name.encode()) < 0:
        return "the native library does not have it"
    return ""
