"""Many answers from one reading: they are those of a session, and they are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from pictures import noise

from ecokv_local import Engine, EvictionConfig
from ecokv_local.budget import Budget
from ecokv_local.errors import ContextFullError, ImageError
from ecokv_local.evaluate.answers import Answers, identity_of
from ecokv_local.evaluate.branches import Reader
from ecokv_local.evaluate.builtin import TASKS
from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.run import evaluate
from ecokv_local.evaluate.suite import builtin_items
from ecokv_local.evaluate.variants import FULL, Policy, Variant, grid

POLICIES = [Policy.parse(name) for name in ("ecokv", "snapkv:window=16", "knorm", "random", "ada")]
BUDGETS = [Budget.parse(b) for b in ("30%", "70%")]


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1, gpu_layers=0) as engine:
        yield engine


def item(name: str = "one", question: str = "What is it?", pictures: int = 1) -> Item:
    def images() -> tuple:
        return tuple(noise(i) for i in range(pictures))

    return Item("own", "k", name, question, ("x",), images=images, content=name, max_tokens=5)


@pytest.mark.parametrize("n_streams", [1, 3, 50])
def test_every_variant_is_answered_at_its_budget(engine: Engine, n_streams: int) -> None:
    variants = grid(POLICIES, BUDGETS, ["after", "before", "chat"])
    reader = Reader(engine, variants, 512, n_streams)
    for pictures in (0, 2):
        replies = reader.answers(item(pictures=pictures))
        assert len(replies) == len(variants)
        for variant, reply in zip(variants, replies, strict=True):
            n = reply.n_prompt
            if variant == FULL:
                assert reply.n_kept == n
            elif variant.when != "before":
                pairs = max(13, int(n * variant.budget.value / 100))
                most = n if "ada" in variant.label else pairs  # heads differ
                assert pairs <= reply.n_kept <= most
            else:
                assert min(13, n) <= reply.n_kept <= n
    reader.close()


def test_a_budget_of_everything_is_the_full_cache(engine: Engine) -> None:
    whole = [Variant(p, Budget.parse("100%"), w) for p in POLICIES for w in ("after", "before")]
    reader = Reader(engine, [FULL, *whole], 512)
    full, *others = reader.answers(item(pictures=2))
    assert {reply.n_kept for reply in others} == {full.n_kept}
    assert {reply.text for reply in others} == {full.text}
    reader.close()


def test_one_item_leaves_nothing_behind_for_the_next(engine: Engine) -> None:
    variants = grid(POLICIES, BUDGETS, ["after"])
    reader = Reader(engine, variants, 512)
    alone = reader.answers(item("b", "Another question?"))
    reader.answers(item("a", pictures=3))
    assert reader.answers(item("b", "Another question?")) == alone
    reader.close()


def test_an_item_that_is_too_long(engine: Engine) -> None:
    reader = Reader(engine, [FULL], 256)
    before = reader.answers(item())
    with pytest.raises(ContextFullError, match=r"own long: \d+ tokens"):
        reader.answers(item("long", "word " * 400))
    assert reader.answers(item()) == before
    reader.close()


def test_answers_are_those_of_a_session(smollm2_path: Path) -> None:
    budget, items = Budget.parse("20%"), list(islice(TASKS["scenes"]("validation", 0), 3))
    chat = Variant(Policy.parse("ecokv"), budget, "chat")
    with Engine(threads=1, n_ctx=512, gpu_layers=0) as engine:
        reader = Reader(engine, [FULL, chat], 512)
        for each in items:
            replies = reader.answers(each)
            for eviction, reply in zip(
                (EvictionConfig(), EvictionConfig(budget=budget)), replies, strict=True
            ):
                with_session = engine.session(eviction=eviction)
                answer = with_session.answer(each.question, each.images(), max_tokens=64)
                with_session.close()
                assert reply.text == answer.text
                assert reply.n_prompt == answer.n_prompt
        reader.close()


def test_no_image_is_dropped_without_a_projector(tiny_llama_path: Path) -> None:
    with Engine(tiny_llama_path, threads=1, gpu_layers=0) as engine:
        reader = Reader(engine, [FULL], 512)
        with pytest.raises(ImageError, match="no projector"):
            reader.answers(item())
        assert reader.answers(item(pictures=0))
        reader.close()


# ---- what is kept on disk


def test_a_run_goes_on_where_it_was(engine: Engine, tmp_path: Path) -> None:
    items, variants = (
        [item(str(i), f"What is {i}?") for i in range(4)],
        grid(POLICIES[:1], BUDGETS, ["after"]),
    )
    answers = Answers(tmp_path, identity_of(engine))
    done: list[str] = []
    part = evaluate(
        engine,
        items,
        variants,
        answers,
        n_ctx=512,
        progress=done.append,
        stopped=lambda: len(done) == 2,
    )
    answers.close()
    assert len(part) == 2 and answers.path.read_text().count("\n") == 1 + 2 * len(variants)
    with answers.path.open("ab") as file:  # the machine went down in the middle of a line
        file.write(b'{"item": "x", "var')
    again = Answers(tmp_path, identity_of(engine))
    whole = evaluate(engine, items, variants, again, n_ctx=512)
    again.close()
    assert [r.replies for r in whole[:2]] == [r.replies for r in part]
    lines = again.path.read_text().splitlines()
    assert len(lines) == 1 + 4 * len(variants) and all(json.loads(line) for line in lines)


def test_answers_of_another_cache_type_are_not_taken(engine: Engine, tmp_path: Path) -> None:
    one = Answers(tmp_path, identity_of(engine))
    other = Answers(tmp_path, {**identity_of(engine), "cache": ["q8_0", "q8_0"]})
    assert one.path != other.path
    one.close()
    other.close()


def test_a_bad_item_is_told_and_the_others_go_on(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    bad = Item("own", "k", "bad", "What?", ("x",), images=lambda: (tmp_path / "bad.png",))
    answers = Answers(tmp_path, identity_of(engine))
    results = evaluate(engine, [item("1"), bad, item("2", "And this?")], [FULL], answers, n_ctx=512)
    answers.close()
    assert [r.error is None for r in results] == [True, False, True]
    assert "bad.png" in results[1].error.message


# ---- made items


@pytest.mark.parametrize("task", list(TASKS))
def test_made_items_are_the_same_again_and_all_different(task: str) -> None:
    def keys(split: str) -> list[str]:
        return [each.key for each in builtin_items({task: 12}, split, sees=True)]

    assert keys("test") == keys("test")
    assert len({*keys("test"), *keys("validation")}) == 24


@pytest.mark.parametrize("task", list(TASKS))
def test_the_right_answer_of_a_made_item_counts(task: str) -> None:
    for each in builtin_items({task: 12}, "validation", sees=True):
        assert each.score(each.answers[0]) == 1
        assert each.score("no idea") == 0


def test_the_text_holds_the_answer_and_a_decoy() -> None:
    for each in builtin_items({"text": 9}, "validation", sees=False):
        assert each.text.count(each.answers[0]) == 1
        assert sum(word.strip(".").isdigit() for word in each.text.split()) == 2
