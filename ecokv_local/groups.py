"""What of a conversation has to stay: images by a floor, texts whole (``docs/method.md``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ecokv_local.budget import Budget
from ecokv_local.errors import BudgetError, UsageError

if TYPE_CHECKING:
    from ecokv_local.config import EvictionConfig
    from ecokv_local.projector import Chunk
    from ecokv_local.vocab import Vocab

Kind = Literal["image", "system", "question"]

#: Texts that can be protected.
PROTECT = ("system", "question")

#: More than any budget: an image that keeps all of its pairs would be protected, not given a floor.
MAX_FLOOR = 2**30


#: What stands for an image in a prompt (``prompt.MEDIA_MARKER``; Jinja is not needed here).
_MARKER = "<__media__>"


@dataclass(frozen=True)
class Span:
    """True positions [start, end) of an image or a text, and the tokens that were read of it."""

    kind: Kind
    start: int
    end: int
    n_tokens: int


@dataclass(frozen=True)
class Group:
    """Positions [start, end) whose KV pairs stay: ``floor`` of them in every head, None: all."""

    start: int
    end: int
    floor: int | None


def parse_protect(value: str | Iterable[str]) -> tuple[str, ...]:
    """``"system,question"``, ``"none"`` or the names, in a fixed order. Raises UsageError."""
    names = value.split(",") if isinstance(value, str) else list(value)
    names = [name.strip() for name in names]
    if names in (["none"], [""]):
        return ()
    for name in names:
        if name not in PROTECT:
            raise UsageError(
                f"protect {name!r} does not exist",
                hint=f"choose from {', '.join(PROTECT)}, or none",
            )
    return tuple(name for name in PROTECT if name in names)


def parse_image_budget(value: Budget | str | int) -> Budget:
    """``64`` or ``"25%"``. Raises UsageError for anything else, sizes in bytes included."""
    try:
        budget = Budget.parse(value)
    except UsageError as error:
        hint = _HINT if "MiB" in error.hint else error.hint  # no sizes here
        raise UsageError(f"image-{error.message}", hint=hint) from None
    if budget.unit == "bytes":
        raise UsageError(f"image-budget {budget}: an amount of memory", hint=_HINT)
    if budget.value > (100 if budget.unit == "percent" else MAX_FLOOR):
        raise UsageError(f"image-budget {budget}: more than there is", hint=_HINT)
    return budget


_HINT = "write a number of KV pairs (64) or a share of the tokens of each image (25%)"


def groups_of(config: EvictionConfig, spans: Sequence[Span]) -> tuple[Group, ...]:
    """What the settings ask of the spans of a sequence, ascending."""
    result = []
    for span in sorted(spans, key=lambda s: s.start):
        if span.kind != "image":
            if span.kind in config.protect and span.end > span.start:
                result.append(Group(span.start, span.end, None))
        elif isinstance(config.image_budget, Budget):
            floor = config.image_budget.resolve(span.n_tokens, 1)
            result.append(Group(span.start, span.end, floor))
    return tuple(result)


def before(spans: Sequence[Span], position: int) -> tuple[Span, ...]:
    """The spans of a sequence that was cut at ``position``."""
    return tuple(
        s if s.end <= position else replace(s, end=position) for s in spans if s.start < position
    )


def check_fits(config: EvictionConfig, pairs: int, spans: Sequence[Span]) -> None:
    """Raises BudgetError where ``pairs`` cannot hold what is protected, or besides it the floor of
    one image. Recent tokens are counted in full: the answer will move them out of the texts.
    """
    groups = groups_of(config, spans)
    if not groups:
        return
    texts = [(g.start, g.end) for g in groups if g.floor is None]
    fixed = _length([(0, config.n_sinks), *texts]) + config.n_recent
    if fixed > pairs:
        raise BudgetError(
            f"budget {config.budget} ({pairs} KV pairs) is below what --protect "
            f"{','.join(config.protect)} needs: {fixed} KV pairs with sinks and recent tokens",
            hint=f"use --budget {fixed} or more, or protect less",
        )
    most = max((g.floor for g in groups if g.floor is not None), default=0)
    if most > pairs - fixed:
        raise BudgetError(
            f"image-budget {config.image_budget} keeps {most} KV pairs of one image, and budget "
            f"{config.budget} ({pairs} KV pairs) leaves {pairs - fixed} for images",
            hint=f"use --budget {fixed + most} or more, or a smaller --image-budget",
        )


def _length(ranges: Iterable[tuple[int, int]]) -> int:
    """Positions that lie in any of some ranges."""
    total, reached = 0, 0
    for start, end in sorted(ranges):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


# ---- where things stand in a prompt --------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """The parts of a rendered prompt that can be protected; "" where there is none."""

    system: str = ""
    question: str = ""


NO_TEXTS = Texts()


def spans_of(
    vocab: Vocab, prompt: str, chunks: Sequence[Chunk], start: int, texts: Texts
) -> tuple[Span, ...]:
    """Images and texts of a prompt that is read as ``chunks`` from position ``start`` on.

    The system prompt is everything up to its end, in a prompt that begins a text. The question is
    the last text of the user; tokens are counted from the end, and a token that reaches into it
    belongs to it.
    """
    spans, position = [], start
    for chunk in chunks:
        if chunk.is_image:
            end = position + chunk.n_positions
            spans.append(Span("image", position, end, chunk.n_tokens))
        position += chunk.n_positions
    first, last = prompt.split(_MARKER)[0], prompt.split(_MARKER)[-1]
    system = first.find(texts.system) if texts.system and start == 0 else -1
    if system >= 0 and chunks:
        n = len(vocab.tokenize(first[: system + len(texts.system)], add_special=True))
        n = min(n, chunks[0].n_tokens)
        spans.append(Span("system", 0, n, n))
    question = last.rfind(texts.question) if texts.question else -1
    if question >= 0 and chunks and not chunks[-1].is_image:
        after = len(vocab.tokenize(last[question + len(texts.question) :]))
        length = len(vocab.tokenize(last[question:])) - after
        floor = max(position - chunks[-1].n_tokens, max((s.end for s in spans), default=0))
        at = max(floor, position - after - length)
        spans.append(Span("question", at, position - after, position - after - at))
    return tuple(spans)
