"""One question of a test set: what is shown, what is asked, and what counts as right."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ecokv_local.evaluate import metrics


@dataclass(frozen=True)
class Item:
    """A question about images and a text that stands before it.

    ``task`` and ``kind`` are what results are grouped by, ``name`` tells items of a task apart.
    ``images`` gives the pictures when they are needed: paths, bytes or Pillow images.
    ``content`` stands for them in the key of the item. ``rate`` scores an answer, 0 to 1; left
    out, ``metric`` does with ``answers``.
    """

    task: str
    kind: str
    name: str
    question: str
    answers: tuple[str, ...]
    text: str = ""
    system: str = ""
    metric: str = "exact"
    images: Callable[[], tuple[Any, ...]] = tuple
    content: str = ""
    rate: Callable[[str], float] | None = None
    max_tokens: int = 64

    def score(self, said: str) -> float:
        """From 0 to 1."""
        if self.rate is not None:
            return self.rate(said)
        return metrics.score(self.metric, said, self.answers)

    @cached_property
    def key(self) -> str:
        """Stands for all that the answer depends on, besides the model and the settings."""
        parts: tuple[Any, ...] = (self.task, self.name, self.text, self.question, self.content)
        parts += (self.max_tokens, self.system) if self.system else (self.max_tokens,)
        return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8")).hexdigest()[:24]

    @property
    def seed(self) -> int:
        """Of the policy `random`: another draw for every item, the same in every run."""
        return int(self.key[:7], 16)
