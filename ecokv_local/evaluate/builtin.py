"""Test sets that are made, not downloaded: scenes, needles among pictures, needles in a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.scenes import Question, needle, questions, scene, score
from ecokv_local.evaluate.scenes.render import SPLITS

#: Pictures of a needle.
N_IMAGES = 4


def scenes(split: str, first: int = 0) -> Iterator[Item]:
    """One picture and one question each, of all kinds in turn as far as the picture answers it."""
    asked: dict[str, int] = {}
    seed = first
    while True:
        one_each = {
            q.kind: q for q in questions(scene(seed, split), np.random.default_rng([seed, 77]))
        }
        question = min(one_each.values(), key=lambda q: asked.get(q.kind, 0))
        asked[question.kind] = asked.get(question.kind, 0) + 1
        yield _about_scenes("scenes", question, split, seed, partial(_pictures, [seed], split))
        seed += 1


def _pictures(seeds: Sequence[int], split: str) -> tuple[Any, ...]:
    return tuple(scene(seed, split).image for seed in seeds)


def _about_scenes(
    task: str, question: Question, split: str, seed: int, images: Callable[[], tuple[Any, ...]]
) -> Item:
    return Item(
        task,
        question.kind,
        f"{split} {seed}",
        question.question,
        (question.answer,),
        images=images,
        content=f"{task} {split} {seed}",
        rate=partial(_rate, question),
    )


def _rate(question: Question, said: str) -> float:
    return score(question, said)


# ---- a number in one of several pictures

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def needles(split: str, first: int = 0, n_images: int = N_IMAGES) -> Iterator[Item]:
    """Several pictures with a number each; one number is asked for: in the words of the training,
    in other words, and where the question names another picture as well.
    """
    seed = first
    while True:
        case = needle(seed, n_images, split)
        kind = ("lexical", "paraphrased", "decoy")[seed % 3]
        question = Question(
            "needle", _needle_question(kind, case.target, n_images), case.question.answer
        )
        images = partial(_needle_pictures, seed, n_images, split)
        item = _about_scenes("needle", question, split, seed, images)
        yield Item(**{**item.__dict__, "kind": kind})
        seed += 1


def _needle_pictures(seed: int, n_images: int, split: str) -> tuple[Any, ...]:
    return tuple(item.image for item in needle(seed, n_images, split).scenes)


def _needle_question(kind: str, target: int, n_images: int) -> str:
    if kind == "lexical":
        return f"In image {target}, what number is shown?"
    if kind == "paraphrased":
        return f"What number is in the {_ORDINALS[target - 1]} image?"
    other = target % n_images + 1
    return f"Do not look at image {other}. In image {target}, what number is shown?"


# ---- a value in a text

_THINGS = (
    "lamp", "door", "garden", "river", "bridge", "kitchen", "tower", "window", "market", "island",
    "forest", "engine", "mirror", "castle", "harbor", "library", "museum", "tunnel", "valley",
    "station",
)  # fmt: skip
_ADJECTIVES = ("red", "old", "quiet", "bright", "small", "northern", "broken", "golden")


def text_needles(split: str, first: int = 0, n_facts: int = 12) -> Iterator[Item]:
    """A list of names and numbers; one number is asked for: in the words of the list, in other
    words, and where two names share their first word.
    """
    seed = first
    while True:
        rng = np.random.default_rng([SPLITS[split], seed, 4711])
        kind = ("lexical", "paraphrased", "decoy")[seed % 3]
        names = _names(rng, n_facts, kind == "decoy")
        codes = rng.choice(9000, n_facts, replace=False) + 1000
        target = int(rng.integers(n_facts))
        lines = [
            f"The code of the {name} is {code}." for name, code in zip(names, codes, strict=True)
        ]
        asked = f"What is the code of the {names[target]}?"
        if kind == "paraphrased":
            asked = f"Which number opens the {names[target]}?"
        yield Item(
            "text",
            kind,
            f"{split} {seed}",
            asked,
            (str(codes[target]),),
            text=" ".join(lines),
            metric="contains",
            max_tokens=24,
        )
        seed += 1


def _names(rng: np.random.Generator, n: int, decoy: bool) -> list[str]:
    """Names of an adjective and a thing; with a decoy every adjective comes twice."""
    things = [_THINGS[i] for i in rng.permutation(len(_THINGS))[:n]]
    adjectives = [_ADJECTIVES[i] for i in rng.integers(len(_ADJECTIVES), size=n)]
    if decoy:
        adjectives = [adjectives[i // 2] for i in range(n)]
    return [f"{a} {t}" for a, t in zip(adjectives, things, strict=True)]


#: By the name of the task.
TASKS: dict[str, Callable[[str, int], Iterator[Item]]] = {
    "scenes": scenes,
    "needle": needles,
    "text": text_needles,
}

#: Tasks that need a model that sees.
SEEING = ("scenes", "needle")
