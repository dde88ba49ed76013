"""Questions with one right answer each, and the check of an answer."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .figure_questions import ask_about_chart, ask_about_table
from .render import FIGURE_KINDS, Scene, SceneObject, reading_order
from .vocabulary import COLORS, SHAPES, plural

KINDS: tuple[str, ...] = (
    "color",
    "shape",
    "position",
    "count",
    "exist",
    "number",
    "word",
    "at",
    "describe",
    "needle",
)

DESCRIBE_SHARE = 0.8
"""A description is right when it names at least this share of the objects."""


@dataclass(frozen=True)
class Question:
    """A question about one scene, or, for kind `needle`, about one of several."""

    kind: str
    question: str
    answer: str
    names: tuple[str, ...] = ()
    """What a description must name."""


def questions(item: Scene, rng: np.random.Generator) -> list[Question]:
    """All questions that the scene answers without doubt, in random order."""
    if item.kind in FIGURE_KINDS:
        return _shuffled(_about_figure(item, rng), rng)
    makers: tuple[Callable[[Scene, np.random.Generator], list[Question]], ...] = (
        _color,
        _shape,
        _position,
        _count,
        _exist,
        _text,
        _at,
    )
    found = [question for maker in makers for question in maker(item, rng)]
    return [*_shuffled(found, rng), describe(item)]


def _shuffled(found: list[Question], rng: np.random.Generator) -> list[Question]:
    return [found[int(i)] for i in rng.permutation(len(found))]


def _about_figure(item: Scene, rng: np.random.Generator) -> list[Question]:
    found: list[Question] = []

    def make(kind: str, asked: str, answer: str) -> None:
        found.append(Question(kind, asked, answer))

    (ask_about_table if item.kind == "table" else ask_about_chart)(item, rng, make)
    return found


def _pick(rng: np.random.Generator, *options: str) -> str:
    return options[int(rng.integers(len(options)))]


def _unique(item: Scene) -> list[tuple[str, SceneObject]]:
    """Objects that a noun alone singles out: a shape's name, "number" or "word"."""
    nouns = [thing.label if thing.kind == "shape" else thing.kind for thing in item.objects]
    seen = Counter(nouns)
    pairs = zip(nouns, item.objects, strict=True)
    return [(noun, thing) for noun, thing in pairs if seen[noun] == 1]


def _color(item: Scene, rng: np.random.Generator) -> list[Question]:
    return [
        Question("color", f"What color is the {noun}?", thing.color)
        for noun, thing in _unique(item)
    ]


def _shape(item: Scene, rng: np.random.Generator) -> list[Question]:
    seen = Counter(thing.color for thing in item.objects)
    return [
        Question("shape", _pick(rng, "What", "Which") + f" shape is {thing.color}?", thing.label)
        for thing in item.shapes
        if seen[thing.color] == 1
    ]


def _position(item: Scene, rng: np.random.Generator) -> list[Question]:
    return [
        Question("position", f"Where is the {noun}?", thing.position)
        for noun, thing in _unique(item)
    ]


def _count(item: Scene, rng: np.random.Generator) -> list[Question]:
    if not item.shapes:
        return []
    seen = Counter(thing.label for thing in item.shapes)
    label = str(rng.choice(sorted(seen)))
    return [
        Question("count", "How many shapes are there?", str(len(item.shapes))),
        Question("count", f"How many {plural(label)} are there?", str(seen[label])),
    ]


def _exist(item: Scene, rng: np.random.Generator) -> list[Question]:
    if not item.shapes:
        return []
    pairs = {(thing.color, thing.label) for thing in item.shapes}
    shown = item.shapes[int(rng.integers(len(item.shapes)))]
    found = [_exist_question(shown.color, shown.label, "yes")]
    # half of the absent ones share the colour with a shown shape, the others its form
    if rng.random() < 0.5:
        absent = (str(rng.choice(list(COLORS))), shown.label)
    else:
        absent = (shown.color, str(rng.choice(SHAPES)))
    if absent not in pairs:
        found.append(_exist_question(*absent, "no"))
    return found


def _exist_question(color: str, label: str, answer: str) -> Question:
    article = "an" if color[0] in "aeiou" else "a"
    return Question("exist", f"Is there {article} {color} {label}?", answer)


def _text(item: Scene, rng: np.random.Generator) -> list[Question]:
    found = []
    for thing in item.objects:
        if thing.kind != "shape":
            asked = _pick(
                rng, f"What {thing.kind} is shown?", f"What {thing.kind} is in the image?"
            )
            found.append(Question(thing.kind, asked, thing.label))
    return found


def _at(item: Scene, rng: np.random.Generator) -> list[Question]:
    places: dict[str, list[SceneObject]] = defaultdict(list)
    for thing in item.objects:
        places[thing.position].append(thing)
    return [
        Question("at", f"What is in the {position}?", things[0].name)
        for position, things in places.items()
        if len(things) == 1
    ]


def describe(item: Scene) -> Question:
    """The question for a sentence that names all objects in reading order."""
    things = sorted(item.objects, key=reading_order)
    parts = [_with_article(thing) for thing in things]
    listed = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    names = tuple(thing.name for thing in things)
    return Question("describe", "Describe the image.", listed[0].upper() + listed[1:] + ".", names)


def _with_article(thing: SceneObject) -> str:
    if thing.kind != "shape":
        return f"the {thing.name}"
    return ("an " if thing.name[0] in "aeiou" else "a ") + thing.name


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and doubled spaces."""
    words = re.sub(r"[^a-z0-9 ]+", " ", text.lower()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def score(question: Question, text: str) -> float:
    """1 or 0 for an exact answer; for a description the share of objects it names."""
    said = normalise(text)
    if question.kind != "describe":
        return float(said == normalise(question.answer))
    wanted = Counter(question.names)
    named = sum(min(count, len(re.findall(rf"\b{name}\b", said))) for name, count in wanted.items())
    return named / len(question.names)


def is_correct(question: Question, text: str) -> bool:
    """Whether an answer counts as right."""
    return score(question, text) >= (DESCRIBE_SHARE if question.kind == "describe" else 1.0)
