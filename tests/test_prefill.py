"""Whole and chunked prefill: what is allocated, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pictures import noise

from ecokv_local import Engine, EvictionConfig, turn
from ecokv_local.errors import UsageError
from ecokv_local.parallel import Request, generate

TEXT = "What is going on in this world of ours? "


def engine_of(path: Path, mmproj: Path | None = None, n_ubatch: int = 64) -> Engine:
    return Engine(path, mmproj, threads=1, n_ctx=4096, n_ubatch=n_ubatch)


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with engine_of(tiny_llama_path, tiny_mmproj_path) as engine:
        yield engine


def settings(prefill: str, budget: int = 96) -> EvictionConfig:
    return EvictionConfig(budget=budget, slack=16, prefill=prefill)  # type: ignore[arg-type]


def test_a_cache_with_a_budget_begins_small_and_grows(engine: Engine) -> None:
    full, small = engine.session(), engine.session(eviction=settings("auto"))
    assert full.context.n_allocated == small.context.n_cells == small.n_cells == 4096
    assert small.context.n_allocated == 256
    assert (
        small.context.kv_bytes() * 16 == full.context.params.n_cells * small.context.bytes_per_row()
    )
    small.answer(TEXT * 30, max_tokens=4)  # needs more
    small.configure(eviction=EvictionConfig())  # and all, without a budget
    assert small.context.n_allocated == 4096
    full.close()
    small.close()


@pytest.mark.parametrize("images", [0, 6])
def test_chunked_prefill_never_holds_more_than_budget_and_micro_batch(
    engine: Engine, images: int
) -> None:
    session, most = engine.session(eviction=settings("chunked")), 0
    pictures = [noise(i) for i in range(images)]
    answer = None
    for event in session.ask(TEXT * 60, pictures, max_tokens=40):
        most, answer = max(most, session.context.n_allocated), event.answer
    assert answer is not None and answer.n_prompt > 1000 and not answer.truncated
    assert most == 256 and answer.n_kept <= 96 + 17  # 96 + 64, rounded up
    assert session.n_position > answer.n_prompt
    assert session.answer("And?", max_tokens=4).text  # and it goes on
    session.close()


@pytest.mark.parametrize("n_ubatch", [1, 7, 32, 512])
@pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65])
def test_chunked_is_whole_where_the_budget_holds_the_prompt(
    tiny_llama_path: Path, length: int, n_ubatch: int
) -> None:
    logits = []
    with engine_of(tiny_llama_path, n_ubatch=n_ubatch) as engine:
        for prefill in ("whole", "chunked"):
            session = engine.session(eviction=settings(prefill, budget=512))
            for _ in session.read("a" * length):
                pass
            assert session.n_rows == session.n_position
            logits.append(session.context.logits())
            session.close()
    np.testing.assert_array_equal(*logits)


def test_auto_reads_in_parts_where_memory_is_short(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = engine.session(eviction=settings("auto"))
    assert not session.answer(TEXT * 30, max_tokens=2).warnings
    session.clear()
    monkeypatch.setattr(turn, "free_bytes", lambda: 2**18)
    answer = session.answer(TEXT * 60, max_tokens=2)
    assert any("read in parts" in warning for warning in answer.warnings)
    assert session.context.n_allocated == 256
    session.close()


def test_many_at_once_are_not_read_in_chunks(engine: Engine) -> None:
    with pytest.raises(UsageError, match="one conversation at a time"):
        list(generate(engine, [Request(0, "Hi")], eviction=settings("chunked")))
