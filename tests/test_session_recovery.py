"""Failures in the middle of a turn, long talks read again, and settings that would crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pictures import noise

from ecokv_local import Engine, EvictionConfig
from ecokv_local.context import Mark
from ecokv_local.errors import (
    ContextFullError,
    EcokvError,
    MemoryLimitError,
    StateError,
    UsageError,
)


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1, n_ctx=1024) as engine:
        yield engine


def budget(pairs: int, **settings: int) -> EvictionConfig:
    return EvictionConfig(budget=pairs, **settings)


def test_a_failed_turn_of_an_evicted_talk_is_read_again_and_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = engine.session(eviction=budget(48, slack=8))
    session.answer("One.", [noise(0)], max_tokens=3)
    before, decode = list(session.messages), session.context.decode

    def fails(tokens: list[int]) -> None:
        if len(tokens) == 1:  # while generating, after the eviction of the prompt
            raise EcokvError("the backend failed")
        decode(tokens)

    monkeypatch.setattr(session.context, "decode", fails)
    with pytest.raises(EcokvError, match="the backend failed"):
        session.answer("Two.", [noise(1)], max_tokens=3)
    assert session.messages == before
    monkeypatch.undo()
    answer = session.answer("Three.", max_tokens=3)
    assert answer.n_image_tokens == 36  # the first picture, once more
    assert any("read again" in w and "cannot go back" in w for w in answer.warnings)
    assert not session.answer("Four.", max_tokens=3).warnings


def test_a_talk_longer_than_the_cache_can_be_read_again(engine: Engine) -> None:
    session = engine.session(n_ctx=256, eviction=budget(48, slack=16))
    for turn in range(8):
        session.answer("And this?", [noise(turn)], max_tokens=20)
    assert session.n_position > 2 * session.n_cells
    most = 0
    events = []
    for event in session.regenerate(max_tokens=4):
        events.append(event)
        most = max(most, session.n_rows)
    event = events[-1]
    assert event.answer is not None and event.answer.n_image_tokens == 8 * 36
    assert event.answer.n_kept == 48 + 4 and most <= session.n_cells
    assert any("read in parts" in warning for warning in event.answer.warnings)
    assert len(session.messages) == 16
    answer = session.answer("And now?", max_tokens=3)
    assert answer.n_prompt < 60 and not answer.warnings


def test_rows_of_a_read_that_broke_off_do_not_stay(engine: Engine) -> None:
    for prompt in ([], [65, 66, 67]):
        context = engine.context(256)
        context.enable(8)
        if prompt:
            context.decode(prompt)
        end = context.mark()
        context.decode([70, 71, 72, 73])
        context.n_position = end.n_position  # as after a native call that failed half-way
        assert context.rollback(end)
        assert context.n_rows == end.n_rows
        context.decode([80])
        fresh = engine.context(256)
        for tokens in (prompt, [80]):
            if tokens:
                fresh.decode(tokens)
        np.testing.assert_array_equal(context.logits(), fresh.logits())
        assert not context.lossy


def test_an_image_read_in_one_piece_has_to_fit_a_micro_batch(
    tiny_gemma3_path: Path, tiny_gemma3_mmproj_path: Path
) -> None:
    files = (tiny_gemma3_path, tiny_gemma3_mmproj_path)
    with Engine(*files, threads=1, n_ctx=256, n_batch=64, n_ubatch=8) as engine:
        session = engine.session()
        with pytest.raises(UsageError, match="16 tokens does not fit a micro-batch of 8"):
            session.answer("What?", [noise(0)], max_tokens=2)
        assert session.answer("Hello", max_tokens=2).n_prompt < 30  # the talk lives on
    with Engine(*files, threads=1, n_ctx=256, n_ubatch=16) as engine:
        session = engine.session(eviction=budget(24))
        answer = session.answer("What?", [noise(0)], max_tokens=2)
        assert (answer.n_image_tokens, answer.n_kept) == (16, 26)


def test_window_layers_that_lost_rows_do_not_rewind(tiny_folder: Path) -> None:  # P29
    import tiny

    path = tiny.tiny_gemma3(tiny_folder / "tiny-gemma3-128.gguf", window=128)
    with Engine(path, threads=1, n_ctx=256) as engine:
        context = engine.context()
        context.enable(8)
        context.decode([65 + i % 26 for i in range(200)])
        context.evict(budget(32), 32)
        for _ in range(4):  # of the 256 cells of the window layers, 164 are used anew
            context.decode([97 + i % 26 for i in range(55)])
        assert not context.rollback(Mark(200, 32, 200))  # position 200 looks back to 72
        assert (context.n_position, context.n_rows) == (420, 252)
        assert context.rollback(Mark(410, 242, 410))
        assert (context.n_position, context.n_rows) == (410, 242)


def test_window_layers_bound_what_is_read_at_once(tiny_folder: Path) -> None:
    import tiny

    path = tiny.tiny_gemma3(tiny_folder / "tiny-gemma3-200.gguf", window=200)
    with Engine(path, threads=1, n_ctx=256) as engine:
        session = engine.session(eviction=budget(32))
        for _ in range(4):  # 56 cells are free of the window: it is read in small steps
            answer = session.answer("word " * 30, max_tokens=4)
            assert answer.n_kept == 36 and answer.finish_reason == "length"
        assert session.n_position > 2 * session.n_cells
    path = tiny.tiny_gemma3(tiny_folder / "tiny-gemma3-300.gguf", window=300)
    with Engine(path, threads=1, n_ctx=256) as engine:
        session = engine.session(eviction=budget(32))
        answer = session.answer("word", max_tokens=500)
        assert (answer.finish_reason, answer.truncated) == ("length", True)
        assert session.n_position == 256 and "above 300" in answer.warnings[-1]
        with pytest.raises(ContextFullError, match=r"301 cells \(window 300 \+ 1\), there are 256"):
            session.answer("More.", max_tokens=2)


def test_settings_that_would_crash_are_refused(
    engine: Engine, tiny_llama_path: Path, tmp_path: Path
) -> None:
    for bad in ({"threads": -1}, {"threads": 0}, {"image_max_tokens": 0}, {"n_ubatch": 0}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            Engine(tiny_llama_path, **bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="ctx-size 8589934592"):
        engine.session(n_ctx=2**33)  # llama.cpp would take its lower 32 bits
    with pytest.raises(MemoryLimitError, match=r"2000000000 cells takes 1907\.3 GiB"):
        engine.session(n_ctx=2_000_000_000)
    small = engine.session(n_ctx=2_000_000_000, eviction=budget(64))  # begins with few cells
    with pytest.raises(MemoryLimitError, match=r"2000000000 cells takes 1907\.3 GiB"):
        small.configure(eviction=EvictionConfig())
    assert small.eviction == budget(64) and small.answer("Hi", max_tokens=2).n_kept > 0
    small.close()
    with pytest.raises(UsageError, match="not a character"):
        engine.session().ask("half \ud83d a character")
    with pytest.raises(UsageError, match="system prompt"):
        engine.session(system="\udcff")


def test_heads_that_blocks_do_not_divide_are_refused(tmp_path: Path) -> None:  # P28
    from ecokv_local.cache_types import check_heads

    check_heads("q8_0", "q4_0", 64, 128)
    check_heads("f16", "bf16", 80, 80)
    check_heads("q8_0", "q8_0", 0, 0)  # no attention, or not told
    with pytest.raises(UsageError, match=r"'q8_0' for K.* have 80 values"):
        check_heads("q8_0", "f16", 80, 80)
    with pytest.raises(UsageError, match=r"'q4_1' for V.* have 72 values"):
        check_heads("f16", "q4_1", 64, 72)


def test_which_attention_runs_is_told(tiny_llama_path: Path) -> None:
    for asked, runs in (("on", "on"), ("off", "off"), ("auto", "on")):
        with Engine(tiny_llama_path, threads=1, n_ctx=256, flash_attn=asked) as engine:
            stats = engine.session().stats()
            assert (stats["flash_attn"], stats["cache_types"]) == (runs, "f16/f16")


def test_size_of_a_cache_is_known_before_it_is_made(
    tiny_llama_path: Path, tiny_gemma3_path: Path, tiny_mamba_path: Path
) -> None:
    from ecokv_local.cache_types import TYPES
    from ecokv_local.gguf_meta import read_meta
    from ecokv_local.memory import kv_bytes

    for name in ("f16", "q8_0", "q4_0"):
        with Engine(
            tiny_llama_path, threads=1, n_ctx=256, cache_type_k=name, cache_type_v="f32"
        ) as engine:
            made = engine.session().stats()["kv_bytes_allocated"]
            assert kv_bytes(engine.meta, 256, TYPES[name], TYPES["f32"]) == made
    assert kv_bytes(read_meta(tiny_mamba_path), 256, 1, 1) == 0


@pytest.mark.parametrize("n_ctx", [1, 100, 300])
def test_a_context_smaller_than_a_batch_reads_in_smaller_batches(
    tiny_llama_path: Path, n_ctx: int
) -> None:
    with Engine(tiny_llama_path, threads=1, n_ctx=n_ctx) as engine:
        session = engine.session()
        answer = session.answer("word " * 30, max_tokens=2)
        assert answer.n_prompt > 100 and any("rounded up" in w for w in answer.warnings)


@pytest.mark.parametrize("what", ["session", "engine"])
def test_closing_while_an_answer_streams_is_an_error_not_a_crash(
    tiny_llama_path: Path, what: str
) -> None:
    with Engine(tiny_llama_path, threads=1, n_ctx=256) as engine:
        session = engine.session(eviction=budget(20))
        stream = session.ask("hello " * 10, max_tokens=50)
        next(stream)
        (session if what == "session" else engine).close()
        with pytest.raises(StateError):
            list(stream)
        stream.close()  # type: ignore[attr-defined]


def test_a_regenerate_beside_a_running_answer_touches_nothing(engine: Engine) -> None:
    session = engine.session()
    session.answer("One.", max_tokens=4)
    again = session.regenerate(max_tokens=3)
    stream = session.ask("Two.", max_tokens=5)
    next(stream)
    rows = session.n_rows
    with pytest.raises(StateError, match="a turn is running"):
        next(again)
    assert session.n_rows == rows
    *_, end = stream
    assert end.answer is not None and end.answer.n_kept == session.n_rows > rows
    later = session.regenerate(max_tokens=3)
    session.clear()
    with pytest.raises(StateError, match="no answer"):
        next(later)


def test_an_interrupted_regenerate_keeps_the_turn(engine: Engine) -> None:
    session = engine.session()
    session.answer("One.", max_tokens=4)
    kept = list(session.messages)
    stream = session.regenerate(max_tokens=9)
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        stream.throw(KeyboardInterrupt())  # type: ignore[attr-defined]
    assert session.messages == kept
    with pytest.raises(UsageError, match="max_tokens -1"):
        session.regenerate(max_tokens=-1)
    assert session.answer("Two.", max_tokens=2).finish_reason == "length"


def test_a_stop_before_the_first_event_counts(engine: Engine) -> None:
    session = engine.session()
    stream = session.ask("One.", max_tokens=50)
    session.stop()
    *_, end = stream
    assert end.answer is not None and end.answer.finish_reason == "cancelled"
    assert session.answer("Two.", max_tokens=2).finish_reason == "length"


def test_another_window_does_not_forget_that_rows_are_gone(engine: Engine) -> None:
    for window in (8, 16):
        session = engine.session(eviction=budget(20, window=8))
        session.answer("hello there " * 5, max_tokens=5)
        session.configure(eviction=budget(20, window=window))
        assert session.context.lossy and session.stats()["layers"][0]["n_evictions"] > 0
        session.configure(eviction=EvictionConfig(window=window))
        answer = session.answer("again", max_tokens=5)
        assert any("read again" in warning for warning in answer.warnings)
        assert session.n_rows == session.n_position  # exact again


def test_a_budget_that_comes_late_reads_the_talk_again(tiny_llama_path: Path) -> None:
    with Engine(tiny_llama_path, threads=1, n_ctx=256) as engine:
        session = engine.session()
        session.answer("word " * 30, max_tokens=5)
        with pytest.raises(StateError, match="no queries"):
            session.evict(20)
        session.configure(eviction=budget(40))
        answer = session.answer("word " * 10, max_tokens=5)
        assert answer.n_kept <= 45
        assert any("read again" in warning for warning in answer.warnings)


def test_a_share_counts_tokens_not_positions(
    tiny_qwen2vl_path: Path, tiny_qwen2vl_mmproj_path: Path
) -> None:  # P03
    with Engine(tiny_qwen2vl_path, tiny_qwen2vl_mmproj_path, threads=1, n_ctx=512) as engine:
        session = engine.session(eviction=EvictionConfig(budget="50%"))
        first = session.answer("What is it?", [noise(0).resize((280, 280))], max_tokens=0)
        assert first.n_kept == first.n_prompt // 2
        second = session.answer("And now?", max_tokens=0)
        assert second.n_kept == (first.n_prompt + second.n_prompt) // 2
        assert session.evict().n_after == second.n_kept


def test_a_share_below_the_minimum_is_named(engine: Engine) -> None:
    session = engine.session(eviction=EvictionConfig(budget="1%"))
    answer = session.answer("word " * 30, max_tokens=1)
    assert answer.n_kept == 14
    assert any("1%" in w and "13 KV pairs stay" in w for w in answer.warnings)


def test_evictions_of_a_failed_turn_are_counted(engine: Engine) -> None:
    session = engine.session(eviction=budget(40))
    session.answer("word " * 30, max_tokens=2)
    stream = session.ask("word " * 30, max_tokens=100)
    with pytest.raises(ZeroDivisionError):
        for event in stream:
            if event.kind == "text":
                stream.throw(ZeroDivisionError())  # type: ignore[attr-defined]
    stats = session.stats()
    assert stats["n_evictions"] == stats["layers"][0]["n_evictions"] > 1


@pytest.mark.parametrize(
    "bad",
    [
        {"n_batch": 2**31},
        {"n_ubatch": 2**32 + 1},
        {"n_ctx": True},
        {"n_ctx": 0},
        {"n_ctx": 256.5},
        {"threads": "4"},
        {"threads": 2**33},
        {"gpu_layers": 2**40},
    ],
    ids=str,
)
def test_numbers_that_no_machine_has_are_refused(tiny_llama_path: Path, bad: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        Engine(tiny_llama_path, **bad)


@pytest.mark.parametrize(
    "bad", [{"recent": 0}, {"kernel": 2**32 + 1}, {"seed": 2**32}, {"sinks": 2**31}], ids=str
)
def test_settings_that_would_wrap_or_break_are_refused(bad: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        EvictionConfig(**bad)


def test_a_budget_beyond_any_cache_keeps_everything(engine: Engine) -> None:
    session = engine.session(eviction=budget(100))
    session.answer("word " * 5, max_tokens=2)
    rows = session.n_rows
    assert session.evict(2**32 + 13).n_after == rows
