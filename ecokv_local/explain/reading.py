"""Read a prompt once, evict it to several budgets, and keep what was looked at on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ecokv_local import inspection
from ecokv_local.budget import Budget
from ecokv_local.config import EvictionConfig
from ecokv_local.errors import UsageError
from ecokv_local.evaluate.branches import Reader, Reply
from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.variants import FULL, Policy, Variant
from ecokv_local.explain.layout import Picture, Token, lay_out
from ecokv_local.images import ImageInput, LoadedImage
from ecokv_local.parts import Parts, parts

if TYPE_CHECKING:
    from ecokv_local.context import Context
    from ecokv_local.engine import Engine
    from ecokv_local.projector import Chunk

Bool = npt.NDArray[np.bool_]
DEFAULT_CELLS = 4096


@dataclass(frozen=True)
class Cut:
    """One eviction: ``pairs`` per layer and KV head, what was answered from them, and which rows
    stayed: ``kept`` is ``[L, H, T]``. ``scores`` as well; NaN-free, sinks and recents included.
    """

    budget: str
    pairs: int
    answer: str
    kept: Bool
    scores: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Explanation:
    """A prompt of ``tokens``, its pictures, the answer of the full cache and every cut, smallest
    budget first. ``features`` are those of ``inspection.features``, ``positions`` [T] the true
    positions of the rows.
    """

    model: str
    question: str
    config: EvictionConfig
    label: str
    tokens: tuple[Token, ...]
    pictures: tuple[Picture, ...]
    positions: npt.NDArray[np.int32]
    answer: str
    cuts: tuple[Cut, ...]
    features: dict[str, Any]
    parts: Parts


class _Notes:
    """The watcher of a ``Reader``."""

    def __init__(self) -> None:
        self.layout: list[Chunk] = []
        self.features: dict[str, Any] = {}
        self.positions = np.zeros(0, np.int32)
        self.kept_by: dict[str, tuple[int, inspection.I32, npt.NDArray[np.float32]]] = {}

    def prompt(self, chunks: Sequence[Chunk]) -> None:
        self.layout = list(chunks)

    def kept(
        self,
        context: Context,
        variant: Variant,
        config: EvictionConfig,
        features: dict[str, Any],
        pairs: int,
        keep: inspection.I32,
    ) -> None:
        n_layer, _, n_rows = features["attn"].shape
        if n_rows <= config.n_sinks + config.n_recent:
            raise UsageError(
                f"the prompt has {n_rows} tokens, {config.n_sinks} sinks and {config.n_recent} "
                "recent ones always stay: there is nothing to choose from",
                hint="give a longer prompt, or a picture",
            )
        scores = [inspection.scores(features, config, pairs, layer) for layer in range(n_layer)]
        self.features, self.positions = features, inspection.kept(context)[0, 0]
        self.kept_by[variant.label] = (pairs, np.array(keep), np.stack(scores))


def explain(
    engine: Engine,
    question: str,
    images: Sequence[Any] = (),
    *,
    policy: Policy,
    budgets: Sequence[Budget],
    system: str = "",
    n_ctx: int | None = None,
    max_tokens: int = 64,
    progress: Callable[[str], None] = lambda text: None,
) -> Explanation:
    """Everything about one prompt. The policy's scores are shown; importance, diversity and weight
    are those of ``ecokv`` with its settings.

    Raises UsageError for a prompt too short to be evicted and as a session does.
    """
    inputs = [ImageInput.of(image) for image in images]
    loaded = [image.load() for image in inputs]
    item = Item(
        "explain", "prompt", "prompt", question, ("",), system=system,
        images=lambda: tuple(inputs), max_tokens=max_tokens,
    )  # fmt: skip
    variants = [Variant(policy, budget) for budget in budgets]
    notes = _Notes()
    progress("reading the prompt")
    reader = Reader(engine, [FULL, *variants], n_ctx or DEFAULT_CELLS, 4, watch=notes)
    try:
        full, *replies = reader.answers(item)
    finally:
        reader.close()
    config = variants[0].config(0)
    return _put_together(engine, item, loaded, policy, config, notes, full, variants, replies)


def _put_together(
    engine: Engine,
    item: Item,
    loaded: Sequence[LoadedImage],
    policy: Policy,
    config: EvictionConfig,
    notes: _Notes,
    full: Reply,
    variants: Sequence[Variant],
    replies: Sequence[Reply],
) -> Explanation:
    tokens, pictures = lay_out(engine, notes.layout, loaded)
    shape = notes.features["attn"].shape
    cuts = []
    for variant, reply in zip(variants, replies, strict=True):
        pairs, keep, scores = notes.kept_by[variant.label]
        cuts.append(Cut(str(variant.budget), pairs, reply.text, _mask(keep, shape), scores))
    return Explanation(
        model=engine.model_path.name,
        question=item.question,
        config=config,
        label=policy.label,
        tokens=tokens,
        pictures=pictures,
        positions=notes.positions,
        answer=full.text,
        cuts=tuple(sorted(cuts, key=lambda cut: cut.pairs)),
        features=notes.features,
        parts=parts(notes.features, config),
    )


def _mask(keep: inspection.I32, shape: tuple[int, int, int]) -> Bool:
    """Ranks ``[L, H, n]``, -1 for none, as a mask ``[L, H, T]``."""
    mask = np.zeros(shape, bool)
    layers, heads, places = np.nonzero(keep >= 0)
    mask[layers, heads, keep[layers, heads, places]] = True
    return mask
