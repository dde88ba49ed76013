"""Conversations that keep a floor of each image, and some texts whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ecokv_local import Engine, EvictionConfig, inspection
from ecokv_local.errors import BudgetError
from ecokv_local.parallel import Request, generate
from ecokv_local.session import Session


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1, n_ctx=1024) as engine:
        yield engine


def picture(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (96, 96, 3), np.uint8)
    return Image.fromarray(pixels)


def kept_of(session: Session, kind: str) -> list[int]:
    """KV pairs of each span of a kind, in the head that has fewest."""
    kept = inspection.kept(session.context)
    spans = [s for s in session.context.spans if s.kind == kind]
    inside = [(kept >= s.start) & (kept < s.end) for s in spans]
    return [int(rows.sum(axis=-1).min()) for rows in inside]


def test_new_images_never_push_an_old_one_out(engine: Engine) -> None:
    keep = EvictionConfig("snapkv", budget=64, image_budget="25%", slack=4)
    free = EvictionConfig("streaming", budget=64, slack=4)
    for eviction, alive in ((keep, True), (free, False)):
        session = engine.session(eviction=eviction)
        for turn in range(10):
            session.answer("Look.", [picture(turn)], max_tokens=6)
            held = kept_of(session, "image")
            assert len(held) == turn + 1
            if alive:  # 9 of 36 each, less where more images share 64 - 8
                assert min(held) >= min(9, (64 - 8) // (turn + 1))
        assert alive or 0 in held
        session.close()


def test_system_prompt_and_question_stay_whole(engine: Engine) -> None:
    config = EvictionConfig("random", budget=120, slack=8, protect="system,question")
    system, question = "Answer as a sailor would.", "How many {ships} are on the picture?"
    session = engine.session(system=system, eviction=config)
    for turn in range(4):
        answer = session.answer(question, [picture(turn)], max_tokens=20)
        assert answer.warnings == () and answer.n_evicted > 0
        spans = {s.kind: s for s in session.context.spans}
        for kind, text in (("system", system), ("question", question)):
            (whole,) = kept_of(session, kind)
            assert whole == spans[kind].end - spans[kind].start
            assert whole >= len(engine.vocab.tokenize(text)) - 1
    # the span of the question is that of its tokens, at their true positions
    session.answer(question, max_tokens=0)
    (span,) = [s for s in session.context.spans if s.kind == "question"]
    read = session._read.text
    after = engine.vocab.tokenize(read[read.rindex(question) + len(question) :])
    assert span.end - span.start == len(engine.vocab.tokenize(question))
    assert session.n_position - span.end == len(after)
    session.close()


def test_a_protected_text_that_is_not_there_is_told(engine: Engine) -> None:
    session = engine.session(eviction=EvictionConfig(budget=64, protect="system"))
    assert "protect system: the prompt has none" in session.answer("Hi.", max_tokens=2).warnings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 40, "protect": "question"}, "below what --protect question needs: "),
        ({"budget": 30, "image_budget": 20}, "leaves 18 for images"),
        ({"budget": 30, "image_budget": "100%"}, "keeps 36 KV pairs of one image"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_read(
    engine: Engine, settings: dict[str, Any], message: str
) -> None:
    session = engine.session(eviction=EvictionConfig(budget=64))
    session.answer("Hi.", max_tokens=3)
    before = (session.n_position, session.n_rows, session.context.spans, list(session.messages))
    session.configure(eviction=EvictionConfig(**settings))
    with pytest.raises(BudgetError, match=message) as found:
        session.answer("word " * 40, [picture(0)])
    assert found.value.exit_code == 5 and "--budget " in found.value.hint
    kind_free = tuple(s for s in session.context.spans if s.kind != "question")
    assert (session.n_position, session.n_rows, list(session.messages)) == (
        before[0],
        before[1],
        before[3],
    )
    assert kind_free == tuple(s for s in before[2] if s.kind != "question")
    session.configure(eviction=EvictionConfig(budget=64))
    assert session.answer("And now?", [picture(1)], max_tokens=3).n_image_tokens == 36
    session.close()


def test_a_budget_that_is_never_reached_refuses_nothing(engine: Engine) -> None:
    config = EvictionConfig(budget=80, image_budget="100%", protect="question")
    session = engine.session(eviction=config)
    assert session.answer("Hi.", max_tokens=3).n_evicted == 0
    session.close()


def test_spans_follow_a_rollback(engine: Engine) -> None:
    session = engine.session(eviction=EvictionConfig(budget=900, image_budget=8))
    session.answer("One.", [picture(0)], max_tokens=3)
    first = session.context.spans
    session.answer("Two.", [picture(1)], max_tokens=3)
    *_, _end = session.regenerate(max_tokens=3)
    spans = session.context.spans
    assert [s.kind for s in spans] == ["image", "image", "question"]
    assert spans[0] == first[0]
    session.clear()
    assert session.context.spans == ()
    session.close()


def test_parallel_requests_keep_their_images(engine: Engine) -> None:
    config = EvictionConfig("streaming", budget=48, image_budget=20, protect="question")
    requests = [Request(i, "What do you see here?", (picture(i),), 6) for i in range(3)]
    run = generate(engine, requests, parallel=3, eviction=config)
    for _, outcome in run:
        assert not isinstance(outcome, Exception) and outcome.n_evicted > 0
    asked = [Request(0, "word " * 60, (picture(0),), 6)]
    ((_, refused),) = generate(engine, asked, eviction=config)
    assert isinstance(refused, BudgetError)


def test_m_rope_images_are_one_range_of_positions(
    tiny_qwen2vl_path: Path, tiny_qwen2vl_mmproj_path: Path
) -> None:
    with Engine(tiny_qwen2vl_path, tiny_qwen2vl_mmproj_path, threads=1, n_ctx=1024) as engine:
        config = EvictionConfig("streaming", budget=48, image_budget=5, slack=4)
        session = engine.session(eviction=config)
        for turn in range(3):
            session.answer("Look.", [picture(turn)], max_tokens=6)
        held = kept_of(session, "image")
        assert len(held) == 3 and min(held) >= 5
