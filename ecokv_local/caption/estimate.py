"""What a batch would take: tokens as the model counts them, memory of the cache, and time at the
rate that was measured before. Nothing is captioned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from ecokv_local.caption.batch import Batch
from ecokv_local.caption.plan import Item
from ecokv_local.errors import EcokvError

if TYPE_CHECKING:
    from ecokv_local.engine import Engine


@dataclass(frozen=True)
class Estimate:
    """Of one picture: tokens of its prompt, those of the picture, KV rows and bytes that stay; or
    why it would fail.
    """

    path: str
    n_prompt: int = 0
    n_image_tokens: int = 0
    n_kept: int = 0
    kv_bytes: int = 0
    error: EcokvError | None = None


def seconds_per_image(batch: Batch) -> float | None:
    """Measured by earlier runs with the same settings; None if there were none."""
    laps = [
        entry["seconds"]
        for entry in batch.state.files.values()
        if entry["status"] == "done" and entry["settings"] == batch.settings
    ]
    return fmean(laps) if laps else None


def estimates(batch: Batch, engine: Engine) -> Iterator[Estimate]:
    """One for each picture that is to be captioned."""
    counter = _Counter(batch, engine)
    for item in batch.plan.to_do:
        try:
            yield counter.estimate(item)
        except EcokvError as error:
            yield Estimate(item.path, error=error)


class _Counter:
    """Counts tokens of pictures that are all white: their number depends on the size alone."""

    def __init__(self, batch: Batch, engine: Engine) -> None:
        from ecokv_local.cache_types import type_number
        from ecokv_local.memory import kv_bytes

        self._batch, self._engine = batch, engine
        self._template = engine.chat_template()
        types = (type_number(engine.cache_type_k), type_number(engine.cache_type_v))
        self._row_bytes = kv_bytes(engine.meta, 1, *types)
        self._known: dict[tuple[int, int, str], tuple[int, int]] = {}

    def estimate(self, item: Item) -> Estimate:
        """Raises EcokvError if the picture would fail."""
        from ecokv_local.errors import ImageError
        from ecokv_local.images import MAX_PIXELS, probe_image

        config = self._batch.config
        header = probe_image(item.path)
        size = (header["width"], header["height"])
        limit = config.max_pixels or MAX_PIXELS
        if size[0] * size[1] > limit:
            raise ImageError(
                f"{item.path}: {size[0]} x {size[1]} is more than the {limit} pixels allowed",
                hint="raise --max-pixels",
            )
        prompt = self._batch.prompt_of(item, header)
        key = (*size, prompt)
        if key not in self._known:
            self._known[key] = self._count(size, prompt)
        n_prompt, n_image = self._known[key]
        kept = n_prompt
        if config.eviction.enabled:
            kept = min(kept, config.eviction.pairs(n_prompt, max(1, self._row_bytes)))
        return Estimate(item.path, n_prompt, n_image, kept, kept * self._row_bytes)

    def _count(self, size: tuple[int, int], prompt: str) -> tuple[int, int]:
        """Tokens of the whole prompt, and of the picture in it."""
        import numpy as np

        from ecokv_local.images import ImageInput, LoadedImage
        from ecokv_local.messages import Message
        from ecokv_local.prompt import MEDIA_MARKER

        image = LoadedImage(np.full((size[1], size[0], 3), 255, np.uint8), "white", "0")
        system = self._batch.config.system
        messages = [Message("user", prompt, (ImageInput("white", "white"),))]
        if system:
            messages.insert(0, Message("system", system))
        text = self._template.render(messages).text
        engine = self._engine
        bos = engine.vocab.text_of("bos")
        add_special = not (engine.vocab.adds_bos and bos and text.startswith(bos))
        assert engine.projector is not None
        pieces = text.split(MEDIA_MARKER)
        with engine.projector.chunks(pieces, [image], add_special=add_special) as chunks:
            total = sum(chunk.n_tokens for chunk in chunks)
            return total, sum(chunk.n_tokens for chunk in chunks if chunk.is_image)
