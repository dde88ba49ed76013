"""Conversations on tiny models: what a turn leaves behind, with and without a budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from invariants import assert_rows_within
from pictures import noise

from ecokv_local import Engine, EvictionConfig, SamplingConfig
from ecokv_local.errors import (
    BudgetError,
    ContextFullError,
    EcokvError,
    ImageError,
    ModelError,
    StateError,
    UsageError,
)


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1, n_ctx=1024) as engine:
        yield engine


def budget(pairs: int | str, **settings: object) -> EvictionConfig:
    return EvictionConfig(budget=pairs, **settings)  # type: ignore[arg-type]


def test_greedy_turns_repeat_and_images_matter(engine: Engine) -> None:
    answers = {}
    for name, seed in (("a", 1), ("b", 2), ("a again", 1), ("b again", 2)):
        session = engine.session()
        answers[name] = session.answer("What is it?", [noise(seed)], max_tokens=12)
        session.close()
    assert answers["a"].text == answers["a again"].text  # P20: every call starts from a known state
    assert answers["b"].text == answers["b again"].text
    assert answers["a"].text != answers["b"].text  # the image reached the model
    assert answers["a"].n_image_tokens == 36
    assert answers["a"].n_kept == answers["a"].n_prompt + 12


def test_later_turns_read_only_what_is_new(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = engine.session()
    read: list[list[int]] = []
    decode = talk.context.decode

    def note(tokens: list[int]) -> None:
        read.append(tokens)
        decode(tokens)

    monkeypatch.setattr(talk.context, "decode", note)
    first = talk.answer("One thing.", max_tokens=5)
    second = talk.answer("Another thing.", max_tokens=5)
    assert talk.n_position == talk.n_rows == first.n_prompt + second.n_prompt + 10
    assert [m.role for m in talk.messages] == ["user", "assistant", "user", "assistant"]
    # every token went in once and in order: a fresh cache that reads the same ends alike
    fresh = engine.context()
    for tokens in read:
        fresh.decode(tokens)
    np.testing.assert_array_equal(fresh.logits(), talk.context.logits())
    fresh.close()


def test_a_budget_holds_for_many_turns_with_images(engine: Engine) -> None:
    session = engine.session(eviction=budget(64, slack=16))
    positions = []
    for turn in range(12):  # P01: more images than the cells of a small cache could hold
        answer = session.answer("And this?", [noise(turn)], max_tokens=20)
        positions.append(session.n_position)
        assert answer.n_evicted > 0
        assert_rows_within(session.context, 64, 16 + 1)
        assert answer.n_kept == session.n_rows <= 64 + 16
    assert positions == sorted(positions) and positions[-1] > 800
    assert session.n_position > session.n_rows  # position, rows and cells are three numbers
    assert session.n_cells == 1024
    stats = session.stats()
    assert stats["n_evictions"] >= 12
    assert stats["layers"][0]["n_pairs_kept"] < stats["layers"][0]["n_pairs_seen"]
    assert stats["kv_bytes"] < stats["kv_bytes_allocated"]


def test_a_share_of_the_prompt_and_bytes_as_a_budget(engine: Engine) -> None:
    session = engine.session(eviction=budget("50%"))
    answer = session.answer("What?", [noise(0)], max_tokens=1)
    assert answer.n_kept == pytest.approx(answer.n_prompt / 2, abs=2)
    session.close()
    per_row = engine.context().bytes_per_row()
    session = engine.session(eviction=budget(f"{per_row * 40}B"))
    answer = session.answer("What?", [noise(0)], max_tokens=1)
    assert answer.n_kept == 41 and answer.kv_bytes == 41 * per_row


@pytest.mark.parametrize("policy", ["ecokv", "snapkv", "streaming", "random"])
def test_every_policy_runs_and_says_what_it_kept(engine: Engine, policy: str) -> None:
    session = engine.session(eviction=budget(48, policy=policy))
    answer = session.answer("Look.", [noise(3)], max_tokens=4)
    assert (answer.policy, answer.budget) == (policy, "48")
    assert answer.n_kept == 48 + 4 and answer.n_evicted == answer.n_prompt - 48
    assert answer.kv_bytes_peak > answer.kv_bytes > 0


def test_a_bad_image_leaves_the_talk_as_it_was(engine: Engine, tmp_path: Path) -> None:
    bad = tmp_path / "bad [x].png"
    bad.write_bytes(b"not a picture")
    for eviction in (EvictionConfig(), budget(48)):
        session = engine.session(eviction=eviction)
        session.answer("One.", [noise(0)], max_tokens=3)
        before = (list(session.messages), session.n_position, session.n_rows)
        with pytest.raises(ImageError, match=r"bad \[x\]\.png"):  # P07: never dropped silently
            session.answer("Two.", [noise(1), bad], max_tokens=3)
        assert (list(session.messages), session.n_position, session.n_rows) == before
        assert session.answer("Three.", [noise(1)], max_tokens=3).n_image_tokens == 36
        session.close()


def test_images_without_a_projector_are_an_error(tiny_llama_path: Path) -> None:
    with Engine(tiny_llama_path, threads=1, n_ctx=256) as blind:
        session = blind.session()
        with pytest.raises(ImageError, match="no projector"):
            session.ask("What?", [noise(0)])
        assert session.answer("Hello", max_tokens=2).text


def test_a_prompt_that_does_not_fit_is_refused_with_numbers(engine: Engine) -> None:
    session = engine.session(n_ctx=256)  # what llama.cpp rounds up to
    session.answer("Hi.", max_tokens=2)
    rows = session.n_rows
    with pytest.raises(ContextFullError, match=r"needs \d+ cells \(216 of them for images\)"):
        session.answer("All of these.", [noise(i) for i in range(6)], max_tokens=2)
    assert session.n_rows == rows and len(session.messages) == 2
    assert session.answer("Well.", max_tokens=2).finish_reason == "length"


def test_a_full_cache_ends_the_answer_and_says_so(engine: Engine) -> None:  # P30
    session = engine.session(n_ctx=64)
    answer = session.answer("Tell me more.", max_tokens=500)
    assert answer.finish_reason == "length" and answer.truncated
    assert any("--budget" in warning for warning in answer.warnings)
    session.close()
    session = engine.session(n_ctx=64, eviction=budget(32, slack=8))
    answer = session.answer("Tell me more.", max_tokens=200)
    assert answer.n_kept <= 40 and not answer.truncated


def test_stop_keeps_the_turn_and_the_next_one_works(engine: Engine) -> None:
    session = engine.session()
    pieces = 0
    for event in session.ask("Go on.", max_tokens=200):
        pieces += event.kind == "text"
        if pieces == 5:
            session.stop()
    assert event.answer is not None and event.answer.finish_reason == "cancelled"
    assert session.messages[-1].text == event.answer.text != ""
    assert session.answer("And now?", max_tokens=3).finish_reason == "length"


def test_stop_while_reading_a_long_prompt(engine: Engine, tiny_llama_path: Path) -> None:  # P27
    with Engine(tiny_llama_path, threads=1, n_ctx=4096, n_ubatch=64) as small:
        session = small.session()
        for event in session.ask("word " * 700, max_tokens=5):
            if event.kind == "status":
                session.stop()
        assert event.answer is not None and event.answer.finish_reason == "cancelled"
        assert session.n_rows == 0  # nothing half-read stays
        answer = session.answer("Short.", max_tokens=3)  # reads both messages
        assert answer.n_prompt > 700


@pytest.mark.slow
def test_stop_does_not_wait_for_a_micro_batch(smollm2_path: Path) -> None:  # P27
    with Engine(smollm2_path, threads=1, n_ctx=4096, n_ubatch=2048) as engine:
        session = engine.session()
        timer = threading.Timer(0.3, session.stop)
        timer.start()
        start = time.monotonic()
        *_, end = session.ask("word " * 3000, max_tokens=5)
        assert end.answer is not None and end.answer.finish_reason == "cancelled"
        assert time.monotonic() - start < 5  # one micro-batch takes longer than that
        assert session.n_rows == 0
        session.clear()
        assert session.answer("Say hello.", max_tokens=4).text


def test_closing_the_stream_keeps_the_turn(engine: Engine) -> None:
    session = engine.session()
    stream = session.ask("Go on.", max_tokens=50)
    for event in stream:
        if event.kind == "text":
            break
    stream.close()  # type: ignore[attr-defined]
    assert len(session.messages) == 2
    assert session.answer("Next.", max_tokens=2).n_kept == session.n_rows


def test_regenerate_answers_the_same_message_again(engine: Engine) -> None:
    for eviction in (EvictionConfig(), budget(48)):
        session = engine.session(eviction=eviction)
        session.answer("Before.", max_tokens=4)
        first = session.answer("What is it?", [noise(4)], max_tokens=8)
        *_, end = session.regenerate(max_tokens=8)
        assert end.answer is not None
        assert len(session.messages) == 4
        if not eviction.enabled:
            assert end.answer.text == first.text  # greedy, the same state
        session.clear()
        with pytest.raises(StateError):
            session.regenerate()


def test_settings_change_between_turns(engine: Engine) -> None:
    session = engine.session()
    session.answer("One.", [noise(0)], max_tokens=3)
    session.configure(eviction=budget(40))
    assert session.answer("Two.", max_tokens=3).n_kept <= 43
    session.configure(eviction=EvictionConfig())
    answer = session.answer("Three.", max_tokens=3)  # the whole talk is read again, exactly
    assert answer.n_evicted == 0 and answer.n_image_tokens == 36
    session.configure(system="Be brief.")
    assert any("read again" in w for w in session.answer("Four.", max_tokens=3).warnings)


def test_sampling_is_seeded(engine: Engine) -> None:
    texts = []
    for seed in (1, 1, 2):
        session = engine.session(sampling=SamplingConfig(temp=2.0, seed=seed))
        texts.append(session.answer("Say.", max_tokens=12).text)
        session.close()
    assert texts[0] == texts[1] != texts[2]


def test_a_recurrent_model_refuses_a_budget_with_the_reason(tiny_mamba_path: Path) -> None:
    with Engine(tiny_mamba_path, threads=1, n_ctx=256) as engine:
        with pytest.raises(ModelError, match=r"mamba.*no plain attention KV cache"):
            engine.session(eviction=budget(64))
        session = engine.session()  # without a budget the same model works
        assert session.answer("Hello", max_tokens=3).n_evicted == 0


def test_a_sliding_window_model_is_evicted_where_it_can_be(tiny_gemma3_path: Path) -> None:
    with Engine(tiny_gemma3_path, threads=1, n_ctx=512) as engine:
        session = engine.session(eviction=budget(32))
        answer = session.answer("word " * 60, max_tokens=4)
        assert answer.n_kept == 36 and len(session.stats()["layers"]) == 2


def test_mrope_goes_on_at_the_true_position(  # P02, P03
    tiny_qwen2vl_path: Path, tiny_qwen2vl_mmproj_path: Path
) -> None:
    with Engine(tiny_qwen2vl_path, tiny_qwen2vl_mmproj_path, threads=1, n_ctx=512) as engine:
        session = engine.session(eviction=budget(32, slack=8))
        answer = session.answer("What is it?", [noise(0, (224, 112))], max_tokens=4)
        assert answer.n_image_tokens > 8
        assert session.n_position < answer.n_prompt + 4  # an image takes fewer positions than cells
        for _ in range(3):
            assert session.answer("And then?", max_tokens=12).n_kept <= 32 + 8


def test_impossible_budgets_and_settings_are_refused_before_anything_runs(engine: Engine) -> None:
    with pytest.raises(BudgetError, match="below 13"):
        budget(12)
    with pytest.raises(UsageError, match="policy 'best'"):
        EvictionConfig(policy="best", budget=64)
    session = engine.session(eviction=budget("1KiB"))
    with pytest.raises(BudgetError):
        session.answer("Hi", max_tokens=1)
    session.configure(eviction=budget(64))
    assert session.answer("Hi", max_tokens=1).text is not None


def test_closed_means_closed(tiny_llama_path: Path) -> None:
    engine = Engine(tiny_llama_path, threads=1, n_ctx=256)
    session = engine.session()
    session.answer("Hi", max_tokens=1)
    engine.close()
    engine.close()
    with pytest.raises(StateError):
        session.answer("Hi", max_tokens=1)
    with pytest.raises(EcokvError):
        engine.session()


def test_quantised_values_need_flash_attention(tiny_llama_path: Path) -> None:  # P28
    with pytest.raises(UsageError, match="needs flash attention"):
        Engine(tiny_llama_path, flash_attn="off", cache_type_v="q8_0")
    with pytest.raises(UsageError, match="does not exist"):
        Engine(tiny_llama_path, cache_type_k="q9_9")
    with Engine(tiny_llama_path, threads=1, n_ctx=256, flash_attn="on", cache_type_v="q8_0") as ok:
        assert ok.session(eviction=budget(24)).answer("word " * 40, max_tokens=2).n_kept == 26


def test_a_projector_of_another_width_is_refused(  # P24
    tiny_llama_path: Path, wrong_mmproj_path: Path, tiny_mmproj_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"320.*256|256.*320"):
        Engine(tiny_llama_path, wrong_mmproj_path)
    with pytest.raises(ModelError, match="projector, not a language model"):
        Engine(tiny_mmproj_path)


def test_many_images_do_not_grow_the_process(engine: Engine) -> None:  # P19
    def resident() -> int:  # KiB
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    image = noise(0)
    session = engine.session(n_ctx=256, eviction=budget(32))
    for turn in range(130):
        session.clear()
        session.answer("What?", [image], max_tokens=1)
        if turn == 30:
            before = resident()
        if turn % 10 == 0:
            engine.session(n_ctx=256)  # dropped without close
    assert resident() - before < 5 * 1024
