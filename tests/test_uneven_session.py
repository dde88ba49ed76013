"""Conversations with budgets that differ between layers and heads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pictures import noise

from ecokv_local import Engine, EvictionConfig
from ecokv_local.errors import ContextFullError, UsageError


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1, n_ctx=512) as engine:
        yield engine


@pytest.mark.parametrize("policy", ["pyramid", "ada", "pyramid+ecokv"])
def test_the_total_holds_for_many_turns(engine: Engine, policy: str) -> None:
    session = engine.session(eviction=EvictionConfig(policy, 64, slack=16))
    most = session.context.rows_max(session.eviction, 64, 512)
    n_evictions = 0
    for turn in range(8):
        answer = session.answer("And this?", [noise(turn)], max_tokens=40)
        assert answer.n_evicted > 0 and answer.n_kept <= most + 16
        # once after reading, then once per slack: not at every token
        turns = session.stats()["n_evictions"] - n_evictions
        assert 1 <= turns <= 2 + 40 // 16
        n_evictions += turns
    assert session.n_position > 512  # more than there are cells
    for layer in session.stats()["layers"]:
        assert layer["n_pairs_kept"] < layer["n_pairs_seen"]
    per_row = session.context.bytes_per_row()
    total = sum(layer["n_pairs_kept"] for layer in session.stats()["layers"])
    assert total == n_evictions * 64 * 2 * 2  # layers, heads
    held = session.evict()
    assert 0 <= session.stats()["kv_bytes_holes"] <= held.hole_bytes < most * per_row


def test_what_uneven_budgets_do_not_save_is_said(engine: Engine) -> None:
    session = engine.session(eviction=EvictionConfig("pyramid", 40))
    session.answer("word " * 60, max_tokens=1)
    result, per_row = session.evict(), session.context.bytes_per_row()
    assert result.hole_bytes > 0 and result.pair_bytes == 40 * per_row
    # the cache shrank after reading: what is left of them
    assert 0 < session.stats()["kv_bytes_holes"] < result.hole_bytes
    session.clear()
    assert session.stats()["kv_bytes_holes"] == 0


def test_rows_of_the_longest_head_have_to_fit(engine: Engine) -> None:
    session = engine.session(eviction=EvictionConfig("pyramid", 250))
    session.answer("word " * 90, max_tokens=1)
    with pytest.raises(ContextFullError, match="budget 250"):
        session.answer("word " * 30, max_tokens=1)
    even = engine.session(eviction=EvictionConfig("snapkv", 250))
    even.answer("word " * 90, max_tokens=1)
    even.answer("word " * 30, max_tokens=1)


def test_bad_settings_name_the_value() -> None:
    for settings in (
        {"layer_budgets": "cone"},
        {"head_budgets": "adda"},
        {"beta": 0.5},
        {"floor": 1.5},
    ):
        with pytest.raises(UsageError, match=str(next(iter(settings.values())))):
            EvictionConfig(**settings)  # type: ignore[arg-type]


def test_a_session_goes_on_without_a_budget(engine: Engine) -> None:
    session = engine.session(eviction=EvictionConfig("ada", 40))
    session.answer("word " * 30, max_tokens=2)
    session.configure(eviction=EvictionConfig())  # all of it is read again
    answer = session.answer("Next.", max_tokens=2)
    assert session.n_rows == session.n_position and answer.n_evicted == 0


@pytest.mark.parametrize("policy", ["ecokv", "pyramid"])
def test_memory_comes_and_goes_and_the_text_stays(tiny_llama_path: Path, policy: str) -> None:
    answers = {}
    for shrink in (True, False):
        with Engine(tiny_llama_path, threads=1, n_ctx=4096) as engine:
            config = EvictionConfig(policy, 100, sinks=4, slack=16, shrink=shrink)
            session = engine.session(eviction=config)
            full = session.context.params.n_cells * session.context.bytes_per_row()
            texts = []
            for turn in range(4):
                texts.append(session.answer(f"{turn} word " * 120, max_tokens=70).text)
                stats = session.stats()
                assert stats["n_cells"] == 4096
                assert (stats["n_cells_allocated"] <= 512) == shrink
                assert (stats["kv_bytes_allocated"] <= full / 8) == shrink
            answers[shrink] = texts
            session.configure(eviction=EvictionConfig())
            answers[shrink].append(session.answer("And now?", max_tokens=10).text)
            assert session.stats()["kv_bytes_allocated"] == full
    assert answers[True] == answers[False]
