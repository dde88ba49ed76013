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


# ---- a number in a text

_PEOPLE = (
    "Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Irene", "Jack", "Kate",
    "Leo", "Maria", "Nora", "Oscar", "Paula",
)  # fmt: skip
_HAY = (
    "The weather was mild that week and the shops were full of people.",
    "Children played near the fountain while their parents talked.",
    "A train left the station every hour and was seldom late.",
    "In the evening the lights along the river were switched on.",
    "The bakery at the corner sold bread, cakes and warm tea.",
    "Some visitors took photographs of the old church.",
    "The library stayed open until eight on most days.",
    "A small band played songs in front of the town hall.",
    "Farmers brought apples, pears and honey to the market.",
    "The museum showed paintings of ships and distant harbors.",
)


def text_needles(split: str, first: int = 0, n_hay: int = 24) -> Iterator[Item]:
    """Two people and their numbers in a text about other things; one number is asked for: in the
    words of the text, in other words, and where a second number of the same person stands in it.
    """
    seed = first
    while True:
        rng = np.random.default_rng([SPLITS[split], seed, 4711])
        kind = ("lexical", "paraphrased", "decoy")[seed % 3]
        who, other = (_PEOPLE[i] for i in rng.permutation(len(_PEOPLE))[:2])
        code, second = (str(n) for n in rng.choice(900, 2, replace=False) + 100)
        facts = [f"The code of {who} is {code}.", f"The code of {other} is {second}."]
        if kind == "decoy":
            facts[1] = f"The room number of {who} is {second}."
        text = [_HAY[i] for i in rng.integers(len(_HAY), size=n_hay)]
        for fact in facts:
            text.insert(int(rng.integers(len(text) + 1)), fact)
        asked = f"What is the code of {who}?"
        if kind == "paraphrased":
            asked = f"Which code does {who} have?"
        yield Item(
            "text",
            kind,
            f"{split} {seed}",
            asked,
            (code,),
            text=" ".join(text),
            metric="contains",
            max_tokens=16,
        )
        seed += 1


#: By the name of the task.
TASKS: dict[str, Callable[[str, int], Iterator[Item]]] = {
    "scenes": scenes,
    "needle": needles,
    "text": text_needles,
}

#: Tasks that need a model that sees.
SEEING = ("scenes", "needle")
