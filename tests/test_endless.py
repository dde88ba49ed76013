"""Long talks cost the same at every turn; conversations side by side do not touch each other."""

from __future__ import annotations

import ctypes as c
import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from invariants import random_tokens
from PIL import Image

from ecokv_local import Engine, EvictionConfig, native, window
from ecokv_local.errors import StateError
from ecokv_local.parallel_cache import Streams
from ecokv_local.session import Session

BUDGET, UBATCH = 96, 64


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(
        tiny_llama_path, tiny_mmproj_path, threads=1, n_ctx=256, n_batch=64, n_ubatch=UBATCH
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (96, 96, 3), np.uint8)
    path = tmp_path_factory.mktemp("pictures") / "a.png"
    Image.fromarray(pixels).save(path)
    return path


def talk(session: Session, turns: int, picture: Path) -> list[str]:
    texts = []
    for turn in range(turns):
        pictures = [picture] if turn % 7 == 0 else []
        for event in session.ask(f"Question {turn}?", pictures, max_tokens=4):
            assert session.n_rows <= BUDGET + UBATCH
            assert session.context.n_allocated <= 256
            if event.answer is not None:
                texts.append(event.answer.text)
                assert not event.answer.error and event.answer.n_prompt < 100
    return texts


def test_turns_cost_the_same_for_ever(
    engine: Engine, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EvictionConfig(budget=BUDGET, image_budget="25%", slack=8)
    session = engine.session(eviction=config)
    rendered: list[int] = []
    render = session._template.render
    monkeypatch.setattr(
        session._template, "render", lambda m, **kw: (rendered.append(len(m)), render(m, **kw))[1]
    )
    talk(session, 60, picture)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    talk(session, 60, picture)
    gc.collect()
    grown = (tracemalloc.get_traced_memory()[0] - before) / 60
    tracemalloc.stop()
    assert len(session.messages) == 240 and session.n_position > 10 * BUDGET
    assert max(rendered) <= window.MOST + 4 and len(rendered) < 2 * 120
    assert len(session._read.text) < 100 * (window.MOST + 4)
    assert grown < 1024, f"{grown:.0f} bytes a turn"
    session.close()


def test_a_window_changes_nothing_that_is_said(
    engine: Engine, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EvictionConfig(budget=BUDGET, slack=8, protect="system")
    said, ends = [], []
    for most in (10**9, 8):
        monkeypatch.setattr(window, "MOST", most)
        monkeypatch.setattr(window, "LEFT", 4)
        session = engine.session(system="Be brief.", eviction=config)
        texts = talk(session, 20, picture)
        assert (session._read.first > 20) == (most == 8)
        *_, end = session.regenerate(max_tokens=4)
        assert end.answer is not None
        said.append([*texts, end.answer.text])
        texts = [m.text for m in session.messages]
        session._forget()  # all of it is read again
        said[-1].append(session.answer("And?", max_tokens=4).text)
        ends.append(session.n_position)
        session.close()
    assert said[0] == said[1] and ends[0] == ends[1]


def test_a_template_that_counts_messages_is_never_windowed(
    engine: Engine, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ecokv_local.prompt import ChatTemplate

    monkeypatch.setattr(window, "MOST", 4)
    monkeypatch.setattr(window, "LEFT", 2)
    source = (
        "{% for m in messages %}[{{ loop.index }} {{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}[{{ messages|length + 1 }} assistant] {% endif %}"
    )
    session = engine.session(eviction=EvictionConfig(budget=BUDGET, slack=8))
    session._template = ChatTemplate(source, name="counting")
    talk(session, 8, picture)
    assert session._read.first == 0
    session.close()


# ---- side by side --------------------------------------------------------------------------------


def rows_of(streams: Streams, seq: int) -> list[bytes]:
    """Raw K and V of all layers."""
    result = []
    lib, context = native.lib, streams.context
    shape = native.Shape()
    native.check(lib.llama_ecokv_get_shape(context.ptr, c.byref(shape)))
    n = native.check(lib.llama_ecokv_n_rows(context.ptr, seq))
    for layer in range(shape.n_layer):
        for value in (False, True):
            size = n * int(lib.llama_ecokv_row_bytes(context.ptr, layer, value))
            data = (c.c_uint8 * size)()
            native.check(lib.llama_ecokv_get_rows(context.ptr, seq, layer, value, data))
            result.append(bytes(data))
    return result


def test_streams_have_budgets_of_their_own(engine: Engine) -> None:
    """Each ends as it would alone, and an eviction moves no byte of another."""
    budgets = (40, 64, 100)

    def run(chosen: tuple[int, ...]) -> dict[int, tuple[list[bytes], bytes]]:
        streams = Streams(engine, 3, 256, EvictionConfig(budget=64), threads=1)
        found = {}
        for round_ in range(3):
            for i in chosen:
                stream = streams.all[i]
                tokens = random_tokens(60, stream.n_vocab, seed=10 * round_ + i)
                stream.decode(tokens)
                logits = stream.logits().tobytes()
                others = {j: rows_of(streams, j) for j in chosen if j != i}
                if stream.n_rows > budgets[i]:
                    stream.evict(EvictionConfig(), budgets[i])
                assert stream.n_rows <= budgets[i]
                assert all(rows_of(streams, j) == rows for j, rows in others.items())
                found[i] = (rows_of(streams, i), logits)
        streams.close()
        return found

    together = run((0, 1, 2))
    for i in range(3):
        assert run((i,))[i] == together[i]


@pytest.mark.parametrize("family", ["llama", "qwen2vl"])
def test_one_document_many_questions(
    family: str, picture: Path, request: pytest.FixtureRequest
) -> None:
    suffix = "" if family == "llama" else "_qwen2vl"
    model = request.getfixturevalue(f"tiny_{family}_path")
    projector = request.getfixturevalue(f"tiny{suffix}_mmproj_path")
    questions = ["What is on the picture?", "Who wrote it, and when was that?"]
    with Engine(model, projector, threads=1, n_ctx=512) as engine:
        document = engine.session()
        document.answer("Read this. " + "word " * 20, [picture], max_tokens=3)
        position = document.n_position
        forks = [document.fork(eviction=EvictionConfig(budget=b, image_budget=8)) for b in (48, 60)]
        answers = [f.answer(q, max_tokens=12) for f, q in zip(forks, questions, strict=True)]
        assert all(answer.n_evicted > 0 for answer in answers)
        assert [f.n_rows <= b + 12 for f, b in zip(forks, (48, 60), strict=True)] == [True, True]
        assert document.n_position == position
        assert all(answer.n_prompt < 80 for answer in answers)  # the document was not read again
        # the same again: no fork has touched the document, nor another fork
        for question, budget, answer in zip(questions, (48, 60), answers, strict=True):
            one = document.fork(eviction=EvictionConfig(budget=budget, image_budget=8))
            assert one.answer(question, max_tokens=12).text == answer.text
        full = document.fork()
        assert (
            full.answer(questions[0], max_tokens=8).text
            == document.answer(questions[0], max_tokens=8).text
        )
        with pytest.raises(StateError, match="evicted"):
            forks[0].fork()
        assert forks[0].answer("Go on.", max_tokens=3).text  # and it lives on
