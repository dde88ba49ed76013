"""Generated scenes and their questions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ecokv_local.evaluate.scenes import (
    FIGURE_KINDS,
    KINDS,
    Question,
    is_correct,
    needle,
    questions,
    scene,
    score,
)
from ecokv_local.evaluate.scenes.needle import number_in
from ecokv_local.evaluate.scenes.vocabulary import COLORS, SHAPES, WORDS, position_name

SEEDS = range(40)


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_same_seed_gives_the_same_scene() -> None:
    first, second = scene(7), scene(7)
    assert first.objects == second.objects
    assert np.array_equal(np.asarray(first.image), np.asarray(second.image))


def test_splits_do_not_share_scenes() -> None:
    pictures = {scene(3, split).image.tobytes() for split in ("train", "validation", "test")}
    assert len(pictures) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_truth_fits_the_picture(seed: int) -> None:
    item = scene(seed)
    assert item.objects
    assert item.owner.shape == (12, 12)
    width, height = item.image.size
    scale = max(width, height) / 192
    for thing in item.objects:
        assert thing.color in COLORS
        assert thing.x - thing.half_width + 1 >= 0
        assert thing.x + thing.half_width <= width / scale + 1
        assert thing.position == position_name(thing.x * scale / width, thing.y * scale / height)


def test_every_object_owns_cells() -> None:
    for seed in SEEDS:
        item = scene(seed)
        owned = set(item.owner[item.owner >= 0].tolist())
        assert owned == set(range(len(item.objects)))


def test_painted_color_is_near_its_name() -> None:
    for seed in SEEDS:
        item = scene(seed)
        pixels = np.asarray(item.image).astype(int)
        scale = max(item.image.size) / 192
        for thing in item.shapes:
            if thing.label == "ring":
                continue
            middle = pixels[int(thing.y * scale), int(thing.x * scale)]
            assert np.abs(middle - np.array(COLORS[thing.color])).max() <= 13


def test_labels_come_from_the_vocabulary() -> None:
    for seed in SEEDS:
        for thing in scene(seed).objects:
            known = {"shape": SHAPES, "word": WORDS}.get(thing.kind)
            assert thing.label in known if known else 0 <= int(thing.label) <= 99


def test_all_kinds_of_questions_occur_and_accept_their_answer() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        for question in questions(scene(seed), _rng(seed)):
            seen[question.kind] += 1
            assert score(question, question.answer) == 1.0
            assert is_correct(question, question.answer)
    assert set(seen) == set(KINDS) - {"needle"}


def test_questions_about_a_thing_have_one_answer() -> None:
    for seed in SEEDS:
        answers: dict[str, str] = {}
        for question in questions(scene(seed), _rng(seed)):
            assert answers.setdefault(question.question, question.answer) == question.answer


def test_answers_are_compared_without_case_and_punctuation() -> None:
    question = Question("color", "What color is the circle?", "red")
    assert is_correct(question, " Red. ")
    assert not is_correct(question, "dark red")
    assert not is_correct(question, "")
    assert not is_correct(Question("number", "What number is shown?", "42"), "24")


def test_description_counts_named_objects() -> None:
    question = Question(
        "describe",
        "Describe the image.",
        "A red circle, a red circle and the number 4.",
        ("red circle", "red circle", "number 4"),
    )
    assert score(question, "A red circle, a red circle and the number 4.") == 1.0
    assert score(question, "A red circle and the number 4.") == pytest.approx(2 / 3)
    assert score(question, "The number 42.") == 0.0
    assert not is_correct(question, "A red circle and the number 4.")


@pytest.mark.parametrize("count", [2, 3, 4])
def test_needle_asks_for_a_number_that_no_other_image_shows(count: int) -> None:
    for seed in range(8):
        case = needle(seed, count)
        numbers = [number_in(item) for item in case.scenes]
        assert len(set(numbers)) == count
        assert case.question.answer == numbers[case.target - 1]
        assert f"image {case.target}," in case.question.question


@pytest.mark.parametrize("kind", FIGURE_KINDS)
def test_tables_and_charts_are_true_to_their_picture(kind: str) -> None:
    for seed in SEEDS:
        item = scene(seed, "validation", {kind: 1.0})
        assert item.kind == kind
        owned = set(item.owner[item.owner >= 0].tolist())
        assert owned == set(range(len(item.objects)))
        pixels = np.asarray(item.image).astype(int)
        scale = max(item.image.size) / 192
        for thing in item.objects:
            if thing.kind == "bar":  # its height in steps, measured on the picture
                column = pixels[:, int(thing.x * scale)]
                far = np.abs(column - np.array(COLORS[thing.color])).max(axis=-1)
                step = (len(column) - 28 * scale) / 6
                assert round((far <= 2).sum() / step) == int(thing.label)


@pytest.mark.parametrize("kind", FIGURE_KINDS)
def test_questions_about_figures_accept_their_answer_and_no_other(kind: str) -> None:
    seen = set()
    for seed in SEEDS:
        item = scene(seed, "validation", {kind: 1.0})
        asked = questions(item, _rng(seed))
        texts = [question.question for question in asked]
        assert len(set(texts)) == len(texts)
        for question in asked:
            seen.add(question.kind)
            assert question.kind in KINDS
            assert is_correct(question, question.answer + ".")
            assert not is_correct(question, "nothing")
    assert seen >= ({"number", "count", "exist"} | ({"color"} if kind == "chart" else {"word"}))


def test_figures_are_not_drawn_unless_asked_for() -> None:
    assert all(scene(seed).kind not in FIGURE_KINDS for seed in range(60))


def test_a_table_cell_is_named_by_its_row_and_column() -> None:
    for seed in SEEDS:
        item = scene(seed, "validation", {"table": 1.0})
        ys = np.array([thing.y for thing in item.objects]).reshape(-1, item.columns)
        xs = np.array([thing.x for thing in item.objects]).reshape(-1, item.columns)
        assert (np.diff(ys.mean(1)) > 0).all() and (np.diff(xs, axis=1) > 0).all()
