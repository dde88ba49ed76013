"""Prompts are read once each and looked at; the numbers are means over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ecokv_local import inspection
from ecokv_local.analyze.measure import F64, KINDS, Kept, Kind, correlations, kept_of, kinds_of
from ecokv_local.budget import Budget
from ecokv_local.config import EvictionConfig
from ecokv_local.errors import UsageError
from ecokv_local.evaluate.branches import Reader
from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.variants import Policy, Variant
from ecokv_local.parts import Parts, parts

if TYPE_CHECKING:
    from ecokv_local.context import Context
    from ecokv_local.engine import Engine
    from ecokv_local.projector import Chunk

DEFAULT_CELLS = 4096


@dataclass(frozen=True)
class Analysis:
    """Means over ``n_prompts``; ``heads`` are ``r_cos``, ``r_euc`` and ``weight``, ``[L, H]``.

    ``kinds`` are correlations by kind of token, ``kept`` by (policy, budget). ``example`` are the
    parts of the first prompt, ``is_image`` [T] says which of its rows are of pictures.
    """

    model: str
    n_prompts: int
    n_tokens: float
    n_image_tokens: float
    heads: dict[str, F64]
    kinds: dict[str, Kind]
    kept: dict[tuple[str, str], Kept]
    example: Parts
    is_image: Any

    def to_dict(self) -> dict[str, Any]:
        """For JSON; NaN is null."""
        kinds = {
            name: {f.name: _plain(getattr(kind, f.name)) for f in fields(kind)}
            for name, kind in self.kinds.items()
        }
        kept = [
            {"policy": policy, "budget": budget, "mass": k.mass, "tokens": k.tokens}
            for (policy, budget), k in self.kept.items()
        ]
        return {
            "model": self.model,
            "n_prompts": self.n_prompts,
            "n_tokens": self.n_tokens,
            "n_image_tokens": self.n_image_tokens,
            "heads": {name: _plain(values) for name, values in self.heads.items()},
            "kinds": kinds,
            "kept": kept,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(part) for part in value]
    if isinstance(value, (float, np.floating)):
        return round(float(value), 6) if np.isfinite(value) else None
    return value


class _Look:
    """The watcher of a ``Reader``: everything is measured while a prompt is in the cache."""

    def __init__(self) -> None:
        self.is_image = np.zeros(0, bool)
        self.parts: Parts | None = None
        self.kept_by: dict[tuple[str, str], Kept] = {}

    def prompt(self, chunks: Sequence[Chunk]) -> None:
        flags = [np.full(chunk.n_tokens, chunk.is_image) for chunk in chunks]
        self.is_image, self.parts = np.concatenate(flags), None
        self.kept_by = {}

    def kept(
        self,
        context: Context,
        variant: Variant,
        config: EvictionConfig,
        features: dict[str, Any],
        pairs: int,
        keep: inspection.I32,
    ) -> None:
        assert variant.policy is not None
        if self.parts is None and variant.policy is _OURS:
            try:
                self.parts = parts(features, config)
            except ValueError as error:
                raise UsageError(
                    f"the prompt is too short: {error}", hint="give a longer one, or a picture"
                ) from None
        label = (variant.policy.label, str(variant.budget))
        attention = np.asarray(features["attn"], np.float64)
        self.kept_by[label] = kept_of(attention, keep, kinds_of(self.is_image))


#: Importance and diversity are those of the default settings, whatever else is compared.
_OURS = Policy.parse("ecokv")


def analyze(
    engine: Engine,
    items: Sequence[Item],
    policies: Sequence[Policy],
    budgets: Sequence[Budget],
    *,
    n_ctx: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Analysis:
    """Of all ``items``. Raises UsageError for a prompt that leaves nothing to choose from, and as a
    session does.
    """
    policies = [_OURS if p.label == _OURS.label else p for p in policies]
    compared = policies if _OURS in policies else [_OURS, *policies]
    variants = [Variant(policy, budget) for policy in compared for budget in budgets]
    look, found = _Look(), []
    wanted = [(p.label, str(b)) for p in policies for b in budgets]
    reader = Reader(engine, variants, n_ctx or DEFAULT_CELLS, 1, watch=look)
    try:
        for i, item in enumerate(items, 1):
            progress(f"reading prompt {i} of {len(items)}")
            reader.look(item)
            assert look.parts is not None
            kinds = {
                name: correlations(look.parts, rows)
                for name, rows in kinds_of(look.is_image).items()
            }
            found.append((look.parts, kinds, look.kept_by, look.is_image))
    finally:
        reader.close()
    return _mean(engine.model_path.name, found, wanted)


def _mean(model: str, found: Sequence[Any], wanted: Sequence[tuple[str, str]]) -> Analysis:
    names = ("r_cos", "r_euc", "weight")
    first = found[0]
    kept = {
        key: Kept(
            _mean_dict([f[2][key].mass for f in found]),
            _mean_dict([f[2][key].tokens for f in found]),
        )
        for key in wanted
    }
    return Analysis(
        model=model,
        n_prompts=len(found),
        n_tokens=float(np.mean([len(f[3]) for f in found])),
        n_image_tokens=float(np.mean([f[3].sum() for f in found])),
        heads={name: np.mean([getattr(f[0], name) for f in found], axis=0) for name in names},
        kinds={name: _mean_kind([f[1][name] for f in found]) for name in KINDS},
        kept=kept,
        example=first[0],
        is_image=first[3],
    )


def _mean_dict(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each key, over those that have it."""
    keys = dict.fromkeys(key for values in found for key in values)
    return {k: float(np.mean([values[k] for values in found if k in values])) for k in keys}


def _mean_kind(found: Sequence[Kind]) -> Kind:
    import warnings

    def over(name: str) -> F64:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Mean of empty slice")  # heads that never rank
            return np.asarray(np.nanmean([getattr(kind, name) for kind in found], axis=0))

    n = round(float(np.mean([kind.n for kind in found])))
    return Kind(n, over("rank_id"), over("overlap_id"), over("rank_ce"), over("overlap_ce"))
