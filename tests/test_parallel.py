"""Several sequences at once: each answers as if it were alone."""

from __future__ import annotations

import ctypes as c
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pictures import noise

from ecokv_local import Engine, EvictionConfig, SamplingConfig, memory, native, parallel_auto
from ecokv_local.context import Context, Stopped
from ecokv_local.errors import (
    ContextFullError,
    EcokvError,
    ImageError,
    ModelError,
    StateError,
    UsageError,
)
from ecokv_local.fork import restore_rows, save_rows
from ecokv_local.parallel import Request, auto_parallel, generate
from ecokv_local.parallel_auto import crews
from ecokv_local.parallel_batch import Batch
from ecokv_local.parallel_cache import Streams
from ecokv_local.parallel_feed import AHEAD, Feed


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1) as engine:
        yield engine


def requests(n: int) -> list[Request]:
    """Prompts and answers of different lengths: they end in another order than they began."""
    words = "What is it? " * 3
    return [Request(i, words[: 12 + 5 * i], (noise(i),), 4 + (7 * i) % 11) for i in range(n)]


NONE, SOME = EvictionConfig(), EvictionConfig(budget=32, slack=4)


@pytest.mark.parametrize("eviction", [NONE, SOME], ids=["full", "budget"])
@pytest.mark.parametrize("threads", [1, 2], ids=["one crew", "two crews"])
def test_each_answer_is_the_one_of_a_session(
    tiny_llama_path: Path, tiny_mmproj_path: Path, eviction: EvictionConfig, threads: int
) -> None:
    asked = requests(9)
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=threads) as engine:
        settings: dict[str, Any] = {"system": "Be brief.", "eviction": eviction}
        batch = list(generate(engine, asked, parallel=8, **settings))
        alone = list(generate(engine, asked, parallel=1, **settings))
        session = engine.session(**settings)
        assert [r.key for r, _ in alone] == list(range(9))  # one at a time: in order
        assert sorted(r.key for r, _ in batch) == list(range(9))
        assert [r.key for r, _ in batch] != list(range(9))
        for request in asked:
            session.clear()
            want = session.answer(request.text, request.images, max_tokens=request.max_tokens)
            for answers in (alone, batch):
                got = next(a for r, a in answers if r is request)
                assert not isinstance(got, EcokvError)
                for name in (
                    *("text", "finish_reason", "truncated", "n_prompt", "n_image_tokens"),
                    *("n_kept", "n_evicted", "kv_bytes", "kv_bytes_peak", "budget", "policy"),
                ):
                    assert getattr(got, name) == getattr(want, name), name
                assert got.t_encode_ms > 0 and got.t_prefill_ms > 0
                assert got.warnings == want.warnings


# ---- sequences in one context


def rows(context: Context, layer: int, value: bool) -> bytes:
    row = int(native.lib.llama_ecokv_row_bytes(context.ptr, layer, value))
    data = c.create_string_buffer(row * context.n_rows)
    get = native.lib.llama_ecokv_get_rows
    native.check(get(context.ptr, context.seq, layer, value, data))
    return data.raw


def everything(context: Context) -> tuple[Any, ...]:
    """All rows, their positions, and the queries of the window."""
    shape = native.Shape()
    native.check(native.lib.llama_ecokv_get_shape(context.ptr, c.byref(shape)))
    kv = [rows(context, il, value) for il in range(shape.n_layer) for value in (False, True)]
    kept = np.zeros((shape.n_layer, shape.n_head_kv, context.n_rows), np.int32)
    pointer = kept.ctypes.data_as(native.IntP)
    native.check(native.lib.llama_ecokv_get_kept(context.ptr, context.seq, pointer))
    queries = [window(context, il) for il in range(shape.n_layer)]
    return kv, kept.tolist(), queries


def window(context: Context, layer: int) -> tuple[bytes, list[int]]:
    info = native.LayerInfo()
    native.check(native.lib.llama_ecokv_get_layer(context.ptr, layer, c.byref(info), None))
    n = native.check(native.lib.llama_ecokv_n_query(context.ptr, context.seq))
    data = np.zeros((n, info.n_head * info.d_k), np.float32)
    positions = np.zeros(n, np.int32)
    native.check(
        native.lib.llama_ecokv_get_queries(
            context.ptr,
            context.seq,
            layer,
            data.ctypes.data_as(native.FloatP),
            positions.ctypes.data_as(native.IntP),
        )
    )
    return data.tobytes(), positions.tolist()


def logits(context: Context, output: int) -> npt.NDArray[np.float32]:
    pointer = native.llama.llama_get_logits_ith(context.ptr, output)
    return np.array(np.ctypeslib.as_array(pointer, (context.n_vocab,)))


@pytest.fixture(params=["f16", "q8_0", "transposed"])
def typed(request: pytest.FixtureRequest, tiny_llama_path: Path) -> Iterator[Engine]:
    settings: dict[str, Any] = {
        "f16": {"flash_attn": "on"},
        "q8_0": {"flash_attn": "on", "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        "transposed": {"flash_attn": "off"},
    }[request.param]
    with Engine(tiny_llama_path, threads=1, **settings) as engine:
        yield engine


def prompt(engine: Engine, seed: int, n: int) -> list[int]:
    n_vocab = engine.vocab.tokenize("x")[0]  # any two tokens will do for a random model
    return np.random.default_rng(seed).integers(n_vocab % 7 + 3, 200, n).tolist()


def test_an_eviction_leaves_the_other_sequences_as_they_were(typed: Engine) -> None:
    eviction = EvictionConfig(budget=24)
    streams = Streams(typed, 3, 256, eviction, threads=1)
    for stream, n in zip(streams.all, (40, 70, 55), strict=True):
        stream.decode(prompt(typed, n, n))
    before = [everything(stream) for stream in streams.all]
    result = streams.all[1].evict(eviction, 24)
    assert (result.n_before, result.n_after) == (70, 24)
    after = [everything(stream) for stream in streams.all]
    assert after[0] == before[0] and after[2] == before[2]
    assert [stream.n_rows for stream in streams.all] == [40, 24, 55]
    streams.all[1].clear()
    assert everything(streams.all[0]) == before[0] and everything(streams.all[2]) == before[2]
    assert streams.all[1].n_rows == 0
    streams.close()


def test_steps_together_are_steps_alone(typed: Engine) -> None:
    """Rows, queries of the window, kept sets and logits, through evictions at different times."""
    eviction = EvictionConfig(budget=24, window=6)
    lengths = (40, 21, 55)
    streams = Streams(typed, 3, 256, eviction, threads=1)
    alone = []
    for stream, n in zip(streams.all, lengths, strict=True):
        single = typed.context(256)
        single.enable(eviction.window)
        for context in (stream, single):
            context.decode(prompt(typed, n, n))
        alone.append(single)
    for step in range(12):
        tokens = prompt(typed, 1000 + step, 3)
        streams.step(list(zip(streams.all, tokens, strict=True)))
        for i, single in enumerate(alone):
            single.decode([tokens[i]])
            np.testing.assert_allclose(
                logits(streams.context, i), single.logits(), rtol=1e-2, atol=1e-2
            )
        for i in range(3):
            if (step + i) % 4 == 0:
                streams.all[i].evict(eviction, 24)
                alone[i].evict(eviction, 24)
    for stream, single in zip(streams.all, alone, strict=True):
        ours, theirs = everything(stream), everything(single)
        assert ours[1] == theirs[1]  # the same tokens in the same heads
        assert [q[1] for q in ours[2]] == [q[1] for q in theirs[2]]
        for (mine, _), (other, _) in zip(ours[2], theirs[2], strict=True):
            np.testing.assert_allclose(
                np.frombuffer(mine, np.float32),
                np.frombuffer(other, np.float32),
                rtol=1e-2,
                atol=1e-2,
            )
        single.close()
    streams.close()


def test_a_copied_prefix_is_the_one_that_was_read(typed: Engine) -> None:
    eviction = EvictionConfig(budget=24)
    streams = Streams(typed, 3, 256, eviction, threads=1)
    first, copy, other = streams.all
    tokens = prompt(typed, 0, 20)
    other.decode(prompt(typed, 1, 90))
    others = everything(other)
    first.decode(tokens)
    saved = save_rows(first)
    copy.decode(prompt(typed, 2, 33))  # what was there before leaves no trace
    copy.evict(eviction, 24)
    copy.clear()
    restore_rows(copy, saved)
    assert (copy.n_rows, copy.n_position, copy.n_tokens) == (20, 20, 20)
    assert everything(copy)[:2] == everything(first)[:2] and everything(other) == others
    for stream in (first, copy):
        stream.decode(prompt(typed, 3, 30))
    assert everything(copy)[:2] == everything(first)[:2]
    for stream in (first, copy):
        stream.evict(eviction, 24)
    assert everything(copy) == everything(first)
    streams.close()


# ---- what can go wrong


def test_a_failure_stops_no_other_request(engine: Engine, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    asked = [
        Request("good", "What?", (noise(0),), 3),
        Request("bad", "What?", (bad,), 3),
        Request("long", "word " * 5000, (noise(1),), 3),
        Request("text", "Hello", (), 3),
        Request("surrogate", "\udc80", (), 3),
        Request("negative", "Hello", (), -1),
        Request("nothing", "What?", (noise(2),), 0),
        Request("last", "What?", (noise(3), noise(4)), 3),
    ]
    for parallel in (1, 4):
        results = {r.key: a for r, a in generate(engine, asked, parallel=parallel, eviction=SOME)}
        assert len(results) == len(asked)
        assert isinstance(results["bad"], ImageError) and "bad.png" in results["bad"].message
        assert isinstance(results["long"], ContextFullError)
        assert isinstance(results["surrogate"], UsageError)
        assert isinstance(results["negative"], UsageError)
        for key in ("good", "text", "nothing", "last"):
            assert not isinstance(results[key], EcokvError), results[key]
        assert results["nothing"].text == ""
        assert results["last"].n_image_tokens == 72


def test_requests_are_taken_when_they_are_needed(engine: Engine) -> None:
    taken = []

    def source() -> Iterator[Request]:
        for request in requests(30):
            taken.append(request.key)
            yield request

    answers = generate(engine, source(), parallel=3)
    assert taken == []
    for done in range(1, 8):
        next(answers)
        assert len(taken) <= done + 3 + AHEAD
    answers.close()
    assert len(taken) <= 7 + 3 + AHEAD


def test_an_error_of_the_source_comes_out(engine: Engine) -> None:
    def source() -> Iterator[Request]:
        yield from requests(3)
        raise KeyError("the list of files broke")

    with pytest.raises(KeyError):
        list(generate(engine, source(), parallel=2))
    assert len(list(generate(engine, requests(3), parallel=2))) == 3


def test_cells_grow_with_the_requests(engine: Engine) -> None:
    asked = [Request(n, "word " * n, (noise(0),), 5) for n in (1, 30, 400, 3, 700, 2)]
    answers = {r.key: a for r, a in generate(engine, asked, parallel=2)}
    assert all(not isinstance(answer, EcokvError) for answer in answers.values()), answers
    small = {r.key: a for r, a in generate(engine, asked, parallel=2, n_ctx=256)}
    assert isinstance(small[400], ContextFullError) and isinstance(small[700], ContextFullError)
    assert small[30].text == answers[30].text


def test_a_request_that_is_stopped_while_it_is_read_draws_no_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> tuple[float, float]:
        raise Stopped

    feed = Feed(engine, requests(1), 1, system=None, eviction=NONE, n_ctx=None)
    batch = Batch(engine, 1, NONE, SamplingConfig(), threads=1)
    assert feed.fill()
    prepared = feed.take(batch.takes, wait=True)
    assert prepared is not None
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(type(engine.projector), "read_image", stopped)
        batch.admit(prepared)  # llama.cpp would abort: there are no logits
    batch.close()
    feed.close()


def test_closing_the_engine_ends_the_iterator(
    tiny_llama_path: Path, tiny_mmproj_path: Path
) -> None:
    engine = Engine(tiny_llama_path, tiny_mmproj_path, threads=2)
    answers = generate(engine, requests(30), parallel=8)
    next(answers)
    engine.close()
    with pytest.raises(StateError, match="closed"):
        next(answers)
    answers.close()
    engine = Engine(tiny_llama_path, tiny_mmproj_path, threads=2)
    answers = generate(engine, requests(30), parallel=8)
    engine.close()
    with pytest.raises(StateError, match="closed"):
        next(answers)


def test_dropping_the_iterator_frees_it(engine: Engine) -> None:
    import threading

    before = threading.active_count()
    answers = generate(engine, requests(30), parallel=2)
    next(answers)
    del answers
    gc.collect()
    assert threading.active_count() == before


def test_a_seed_does_not_depend_on_the_neighbours(engine: Engine) -> None:
    sampling = SamplingConfig(temp=1.5, seed=7)
    asked = [replace(r, max_tokens=8) for r in requests(5)]
    texts = []
    for order in (asked, asked[::-1]):
        got = generate(engine, order, parallel=3, sampling=sampling)
        texts.append({r.key: a.text for r, a in got})  # type: ignore[union-attr]
    assert texts[0] == texts[1]


def test_each_request_has_its_own_grammar(engine: Engine) -> None:
    asked = [
        Request(word, "Which?", (noise(0),), 12, f'root ::= "{word}"')
        for word in ("red", "blue", "green")
    ]
    got = {r.key: a for r, a in generate(engine, [*asked, *requests(2)], parallel=4)}
    assert all(got[word].text == word for word in ("red", "blue", "green"))
    broken = Request("x", "Which?", (), 3, "root ::= (")
    (_, error), *_ = generate(engine, [broken])
    assert isinstance(error, UsageError)


def test_settings_that_cannot_work(engine: Engine, tiny_mamba_path: Path) -> None:
    for parallel in (0, -1, True, 2000):
        with pytest.raises(UsageError):
            generate(engine, [], parallel=parallel)
    with Engine(tiny_mamba_path, threads=1) as mamba:
        with pytest.raises(ModelError, match="no plain attention KV cache"):
            list(generate(mamba, [Request(0, "Hi", (), 3)], eviction=SOME))
        answers = [a for _, a in generate(mamba, [Request(i, "Hi", (), 3) for i in range(3)])]
        assert not any(isinstance(answer, EcokvError) for answer in answers)
    assert list(generate(engine, [])) == []


def test_mrope_and_sliding_windows(
    tiny_qwen2vl_path: Path,
    tiny_qwen2vl_mmproj_path: Path,
    tiny_gemma3_path: Path,
    tiny_gemma3_mmproj_path: Path,
) -> None:
    families = (
        (tiny_qwen2vl_path, tiny_qwen2vl_mmproj_path),
        (tiny_gemma3_path, tiny_gemma3_mmproj_path),
    )
    asked = requests(6)
    for model, mmproj in families:
        with Engine(model, mmproj, threads=1, n_ctx=512) as engine:
            batch = {r.key: a for r, a in generate(engine, asked, parallel=3, eviction=SOME)}
            session = engine.session(eviction=SOME)
            for request in asked:
                session.clear()
                want = session.answer(request.text, request.images, max_tokens=request.max_tokens)
                got = batch[request.key]
                assert not isinstance(got, EcokvError)
                assert (got.text, got.n_kept) == (want.text, want.n_kept)


def test_the_adapter_for_images_is_for_images_only(smollm2_path: Path) -> None:
    """The built-in model: talk without images is the language model's own."""
    with Engine(threads=1) as engine:
        asked = [
            Request("a", "What do you see?", (noise(0),), 6),
            Request("b", "Say hello.", (), 6),
            Request("c", "What do you see?", (noise(1),), 6),
            Request("d", "Name a colour.", (), 6),
        ]
        got = {r.key: a for r, a in generate(engine, asked, parallel=3)}
        session = engine.session()
        for request in asked:
            session.clear()
            want = session.answer(request.text, request.images, max_tokens=6)
            assert got[request.key].text == want.text, request.key


def test_crews() -> None:
    assert crews(1, 8, on_host=True) == [1]
    assert crews(8, 1, on_host=True) == [8]
    assert crews(8, 2, on_host=True) == [4, 4]
    assert crews(11, 2, on_host=True) == [6, 5]
    assert crews(64, 32, on_host=True) == [16] * 4
    assert crews(64, 32, on_host=False) == [64]


def test_auto(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto_parallel(engine) in parallel_auto._SIZES
    one = memory.kv_bytes(engine.meta, 512, *engine.cache_types)
    assert one is not None
    monkeypatch.setattr(parallel_auto, "free_bytes", lambda: one * parallel_auto._SHARE * 3)
    assert auto_parallel(engine) in (1, 2)  # three would fit
    assert [auto_parallel(engine, n) for n in (1, 2, 9)] == [1, 2, 3]  # nothing is tried


def test_many_requests_do_not_grow_the_process(engine: Engine) -> None:  # P19
    def resident() -> int:  # KiB
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    image = noise(0)
    source = (Request(i, "What?", (image,), 2) for i in range(600))
    for done, _ in enumerate(generate(engine, source, parallel=4, eviction=SOME)):
        if done == 100:
            before = resident()
    assert resident() - before < 500 * 5
