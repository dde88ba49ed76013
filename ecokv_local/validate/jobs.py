"""What a validation works through, and the first difference that it meets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ecokv_local.config import EvictionConfig
from ecokv_local.validate.compare import I32
from ecokv_local.validate.report import CHECKS, Check, Difference

Protected = tuple[int, int]  # sinks, recents


@dataclass(frozen=True)
class Job:
    """A policy with its budget in KV pairs and the native plan ``[n_layer, H, k]``."""

    config: EvictionConfig
    pairs: int
    plan: I32

    @property
    def name(self) -> str:
        """The policy's."""
        return self.config.policy

    @property
    def protected(self) -> Protected:
        """Sinks and recents, which the features depend on."""
        return self.config.n_sinks, self.config.n_recent


class First:
    """The first difference of each check; layers are offered in their order."""

    def __init__(self) -> None:
        self._found: dict[Check, Difference] = {}

    def offer(self, check: Check, make: Callable[[], Difference]) -> None:
        """Keep what ``make`` tells, unless this check has a difference already."""
        if check not in self._found:
            self._found[check] = make()

    @property
    def difference(self) -> Difference | None:
        """That of the first check in the order of ``CHECKS``: it explains the later ones."""
        return next((self._found[check] for check in CHECKS if check in self._found), None)
