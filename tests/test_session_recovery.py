"""Failures in the middle of a turn, long talks read again, and settings that would crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ecokv_local import Engine, EvictionConfig
from ecokv_local.errors import ContextFullError, EcokvError, MemoryLimitError, UsageError


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1, n_ctx=1024) as engine:
        yield engine


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (96, 96, 3), np.uint8))


def budget(pairs: int, **settings: int) -> EvictionConfig:
    return EvictionConfig(budget=pairs, **settings)


def test_a_failed_turn_of_an_evicted_talk_is_read_again_and_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = engine.session(eviction=budget(48, slack=8))
    session.answer("One.", [picture(0)], max_tokens=3)
    before, decode = list(session.messages), session.context.decode

    def fails(tokens: list[int]) -> None:
        if len(tokens) == 1:  # while generating, after the eviction of the prompt
            raise EcokvError("the backend failed")
        decode(tokens)

    monkeypatch.setattr(session.context, "decode", fails)
    with pytest.raises(EcokvError, match="the backend failed"):
        session.answer("Two.", [picture(1)], max_tokens=3)
    assert session.messages == before
    monkeypatch.undo()
    answer = session.answer("Three.", max_tokens=3)
    assert answer.n_image_tokens == 36  # the first picture, once more
    assert any("read again" in w and "cannot go back" in w for w in answer.warnings)
    assert not session.answer("Four.", max_tokens=3).warnings


def test_a_talk_longer_than_the_cache_can_be_read_again(engine: Engine) -> None:
    session = engine.session(n_ctx=256, eviction=budget(48, slack=16))
    for turn in range(8):
        session.answer("And this?", [picture(turn)], max_tokens=20)
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
        end = context.n_position
        context.decode([70, 71, 72, 73])
        context.n_position = end  # as after a native call that failed half-way
        assert context.rollback(end, end)
        assert context.n_rows == end
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
            session.answer("What?", [picture(0)], max_tokens=2)
        assert session.answer("Hello", max_tokens=2).n_prompt < 30  # the talk lives on
    with Engine(*files, threads=1, n_ctx=256, n_ubatch=16) as engine:
        session = engine.session(eviction=budget(24))
        answer = session.answer("What?", [picture(0)], max_tokens=2)
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
        assert not context.rollback(200, 32)  # position 200 looks back to 72
        assert (context.n_position, context.n_rows) == (420, 252)
        assert context.rollback(410, 242)
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
