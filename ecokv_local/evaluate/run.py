"""Answer items in every variant, keeping what is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from ecokv_local.config import EvictionConfig
from ecokv_local.errors import ContextFullError, EcokvError, ImageError
from ecokv_local.evaluate.answers import Answers
from ecokv_local.evaluate.branches import Reader, Reply
from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.variants import Variant

if TYPE_CHECKING:
    from ecokv_local.engine import Engine

DEFAULT_CELLS = 2048

#: What is wrong with one item, not with all of them.
ITEM_ERRORS = (ImageError, ContextFullError)


@dataclass(frozen=True)
class Result:
    """An item that was answered: a reply and a score, 0 to 1, by the label of the variant; or why
    it could not be.
    """

    item: Item
    replies: dict[str, Reply]
    scores: dict[str, float]
    error: EcokvError | None = None


def evaluate(
    engine: Engine,
    items: Iterable[Item],
    variants: Sequence[Variant],
    answers: Answers,
    *,
    n_ctx: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Results of all items; those that ``answers`` knows are not answered again.

    An item that cannot be read (an image that is none, a prompt that is too long) has an error, and
    the others go on. ``stopped`` ends the run between two items. Raises EcokvError for anything
    that concerns all items.
    """
    reader: Reader | None = None
    results, items = [], list(items)
    names = _names(variants)
    clock, n_new = monotonic(), 0
    try:
        for i, item in enumerate(items):
            if stopped():
                break
            missing = [v for v in variants if (item.key, names[v.label]) not in answers.known]
            error = None
            if missing:
                if reader is None:
                    reader = Reader(engine, variants, n_ctx or DEFAULT_CELLS)
                try:
                    found = reader.answers(item, missing)
                    replies = {names[v.label]: r for v, r in zip(missing, found, strict=True)}
                    answers.add(item.key, replies)
                    n_new += 1
                except ITEM_ERRORS as problem:
                    error = problem
            results.append(_result(item, names, answers, error))
            progress(_progress(i + 1, len(items), n_new, monotonic() - clock))
    finally:
        if reader is not None:
            reader.close()
    return results


def _names(variants: Sequence[Variant]) -> dict[str, str]:
    """Under which name answers are kept, by label: small budgets depend on what is compared."""
    least = max((v.policy.config.budget_min() for v in variants if v.policy), default=0)
    more = f" of {least}" if least > EvictionConfig().budget_min() else ""
    return {v.label: f"{v.label}{more}" if v.policy else v.label for v in variants}


def _result(
    item: Item, names: Mapping[str, str], answers: Answers, error: EcokvError | None
) -> Result:
    if error is not None:
        return Result(item, {}, {}, error)
    replies = {label: answers.known[item.key, name] for label, name in names.items()}
    return Result(item, replies, {k: item.score(r.text) for k, r in replies.items()})


def _progress(done: int, n: int, new: int, seconds: float) -> str:
    text = f"{done} of {n} items"
    if new and done < n:
        left = seconds / new * (n - done)
        text += f", about {left / 60:.0f} min left" if left > 90 else f", about {left:.0f} s left"
    return text
