"""What a validation found: frozen, and the same for people and programs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

Check = Literal["features", "kept", "end_to_end", "rows", "positions"]

#: In the order in which one depends on another: the first that differs explains the rest.
CHECKS: tuple[Check, ...] = ("features", "kept", "end_to_end", "rows", "positions")


def plain(value: Any) -> Any:
    """Dataclasses, tuples and dicts as JSON values; a number that is not finite becomes text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@dataclass(frozen=True)
class Difference:
    """The first place where native code and reference part.

    ``what`` is the feature, ``K`` or ``V``, or what else differs. ``rank`` counts rows of the
    cache, ``position`` is where that token stands in the text. ``cause`` is a guess from the
    pattern of all mismatches of this check.
    """

    check: Check
    policy: str | None
    layer: int
    head: int
    rank: int | None
    position: int | None
    what: str
    native: float | str
    reference: float | str
    error: float
    cause: str


@dataclass(frozen=True)
class LayerReport:
    """One evictable layer. ``errors`` is the largest relative error of each feature over heads and
    rows; ``scale``, ``soft_cap`` (0: none) and ``sinks`` are what its attention scored with.
    """

    layer: int
    n_head: int
    n_head_kv: int
    scale: float
    soft_cap: float
    sinks: bool
    n_nonfinite: int
    errors: dict[str, float]
    tolerances: dict[str, float]

    @property
    def ok(self) -> bool:
        """Whether every feature is within its tolerance."""
        return all(error <= self.tolerances[name] for name, error in self.errors.items())


@dataclass(frozen=True)
class KeptReport:
    """Kept sets and moved rows of one policy in one layer, counted over KV heads.

    ``n_kept`` ranks are kept over all heads. ``n_unequal`` differ from the reference given the same
    features; end to end ``n_equal`` are equal, ``n_ties`` differ by less than the tie range of the
    cut and ``n_wrong`` by more. ``bytes_unequal`` bytes of K and V are not those of the gathered
    rows, ``positions_unequal`` positions not those of the kept tokens. ``score_error`` is the
    largest relative error of the native scores given the same features.
    """

    layer: int
    n_kept: int
    n_unequal: int
    score_error: float
    n_equal: int
    n_ties: int
    n_wrong: int
    bytes_unequal: int
    positions_unequal: int

    @property
    def ok(self) -> bool:
        """Whether nothing differs but ties."""
        return not (self.n_unequal or self.n_wrong or self.bytes_unequal or self.positions_unequal)


@dataclass(frozen=True)
class PolicyReport:
    """One policy over all layers: ``budget`` KV pairs per layer and head stay.

    ``nominal_unequal`` positions that llama.cpp sees of the cells are not those of the last token
    that any layer or head keeps there.
    """

    policy: str
    budget: int
    sinks: int
    recent: int
    nominal_unequal: int
    layers: tuple[KeptReport, ...]

    @property
    def ok(self) -> bool:
        """Whether every layer is."""
        return not self.nominal_unequal and all(layer.ok for layer in self.layers)

    @property
    def share_equal(self) -> float:
        """Share of the kept positions that are equal end to end, ties counted as different."""
        kept = sum(layer.n_kept for layer in self.layers)
        return sum(layer.n_equal for layer in self.layers) / kept if kept else 1.0


@dataclass(frozen=True)
class Skipped:
    """A policy that was not validated, and why."""

    policy: str
    reason: str


@dataclass(frozen=True)
class Report:
    """All of it. ``first_difference`` is None where everything agrees."""

    model: str
    mmproj: str | None
    n_prompt: int
    n_image_tokens: int
    n_rows: int
    n_query: int
    window: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: bool
    n_layer_other: int
    layers: tuple[LayerReport, ...]
    policies: tuple[PolicyReport, ...]
    skipped: tuple[Skipped, ...]
    first_difference: Difference | None
    warnings: tuple[str, ...]
    t_ms: float

    @property
    def ok(self) -> bool:
        """Whether native code and reference agree."""
        return self.first_difference is None

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``: all fields, and ``ok`` and ``share_equal`` beside them."""
        result: dict[str, Any] = {"ok": self.ok, **plain(self)}
        for layer, told in zip(self.layers, result["layers"], strict=True):
            told["ok"] = layer.ok
        for policy, told in zip(self.policies, result["policies"], strict=True):
            told["ok"], told["share_equal"] = policy.ok, policy.share_equal
        return result
