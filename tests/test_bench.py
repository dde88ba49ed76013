"""`ecokv bench`: which caches are made, what they hold, and how rows are told."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ecokv_local import Engine
from ecokv_local.bench import plan as planning
from ecokv_local.bench.formats import FORMATS, table
from ecokv_local.bench.lanes import measure
from ecokv_local.bench.pictures import curves
from ecokv_local.bench.plan import Case, cache_pairs, cases, prepare
from ecokv_local.bench.prompt import Prompt, read_prompt, text_tokens
from ecokv_local.bench.rows import Measured, Prefill, Row, Sample, rows
from ecokv_local.bench.run import run
from ecokv_local.bench.stock import Stock
from ecokv_local.budget import Budget
from ecokv_local.errors import BudgetError, EcokvError, ModelError, UsageError
from ecokv_local.evaluate.variants import Policy
from ecokv_local.native import library_dir

ECOKV = Policy.parse("ecokv")
BUDGETS = [Budget.parse(b) for b in (64, "50%")]


@pytest.fixture
def engine(tiny_llama_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, threads=1, gpu_layers=0) as engine:
        yield engine


@pytest.fixture
def stock() -> Path:
    folder = library_dir() / "stock"
    if not folder.is_dir():
        pytest.skip("no unpatched libraries were built")
    return folder


def measured(case: Case, *speeds: float, **more: int) -> Measured:
    return Measured(case, [Sample(speed, case.pairs or case.depth, **more) for speed in speeds])


# ---- what is measured


def test_short_prompts_are_as_long_as_the_budgets() -> None:
    found = cases([300, 700], [ECOKV], [*BUDGETS, Budget.parse("1MiB"), Budget.parse(900)], 4096)
    assert [c.depth for c in found if c.policy is None] == [64, 150, 256, 300, 350, 700]
    short = {(str(c.budget), c.depth): c.short for c in found if c.policy}
    assert short["64", 700] == Case(64) and short["50%", 700] == Case(350)
    assert short["1MiB", 700] == Case(256)  # of 4096 bytes each
    assert short["900", 700] is None  # nothing is evicted
    assert cases([700], [ECOKV], [Budget.parse("1MiB")], 0)[1].short is None  # not known


def test_usual_depths_are_those_that_the_model_was_trained_for() -> None:
    for n_ctx_train, depths, told in (
        (8192, [512, 1024, 4096], ""),
        (2048, [512, 1024], "depth 4096 is left out"),
        (300, [300], "depth 512, 1024, 4096 is left out"),
    ):
        warnings: list[str] = []
        assert planning._fitting(n_ctx_train, warnings) == depths
        assert told in " ".join(warnings) and bool(warnings) == bool(told)


def test_without_wishes_the_usual_is_measured(engine: Engine) -> None:
    found = prepare(engine)
    assert found.warnings == ()
    assert {c.depth for c in found.cases if not c.policy} == {128, 512, 1024, 4096}
    assert {(c.config.policy, c.pairs) for c in found.cases if c.policy} == {
        ("ecokv", 128),
        ("ecokv", 512),
    }


def test_what_cannot_be_measured(engine: Engine) -> None:
    with pytest.raises(BudgetError, match="13"):
        prepare(engine, [100], [ECOKV], [Budget.parse(12)])
    with pytest.raises(BudgetError):  # by the bytes of a row of this model
        prepare(engine, [100], [ECOKV], [Budget.parse("0.01MiB")])
    for doubled in ([100, 100], [ECOKV], BUDGETS), ([100], [ECOKV] * 2, BUDGETS):
        with pytest.raises(UsageError, match="twice"):
            prepare(engine, *doubled)
    with pytest.raises(UsageError, match=r"9000.*8192 positions") as error:
        prepare(engine, [512, 9000])
    assert "from 1 to 8192" in error.value.hint


def test_a_recurrent_model_is_measured_in_full(tiny_mamba_path: Path) -> None:
    with Engine(tiny_mamba_path, threads=1, gpu_layers=0) as engine:
        with pytest.raises(ModelError):
            prepare(engine, [100], [ECOKV], BUDGETS)
        found = prepare(engine, [100])
        assert found.cases == (Case(100),) and "the full cache alone" in found.warnings[0]
        (row,) = run(engine, found.cases, repetitions=1)
    assert row.decode_tokens_per_s > 0 and (row.policy, row.n_kept) == ("full", 100)


def test_cache_types_of_two_lists_are_combined() -> None:
    assert cache_pairs(None, None) == [("f16", "f16")]
    assert cache_pairs(["f16", "q8_0"], ["q4_0"]) == [("f16", "q4_0"), ("q8_0", "q4_0")]


# ---- measuring


def test_every_cache_is_of_the_size_that_was_asked_for(engine: Engine) -> None:
    found = run(engine, cases([300, 700], [ECOKV], BUDGETS), repetitions=2)
    by_case = {(row.policy, row.budget, row.depth): row for row in found}
    assert {name: row.n_kept for name, row in by_case.items()} == {
        ("full", "-", 64): 64,
        ("full", "-", 150): 150,
        ("full", "-", 300): 300,
        ("full", "-", 350): 350,
        ("full", "-", 700): 700,
        ("ecokv", "64", 300): 64,
        ("ecokv", "64", 700): 64,
        ("ecokv", "50%", 300): 150,
        ("ecokv", "50%", 700): 350,
    }
    cells = 1024  # bytes of a cell: 2 layers, 2 heads of 64, K and V in f16
    full, evicted = by_case["full", "-", 700], by_case["ecokv", "64", 700]
    assert full.kv_bytes == full.kv_peak_bytes == 768 * cells
    assert (evicted.kv_bytes, evicted.kv_peak_bytes) == (256 * cells, 768 * cells)
    assert evicted.kv_over_full == pytest.approx(1 / 3, abs=1e-4)
    for row in found:
        assert row.repetitions == 2 and row.decode_tokens_per_s > 0
        assert row.cache == "f16/f16" and row.threads == 1 and row.model == "tiny-llama.gguf"
        assert row.prefill_tokens_per_s is not None and row.prefill_tokens_per_s > 0
        assert (row.features_ms > 0) == (row.policy == "ecokv")
        parts = row.features_ms + row.plan_ms + row.apply_ms
        assert row.evict_ms == pytest.approx(parts, abs=0.002)
        assert (row.decode_over_full is None) == (row.policy == "full")
        assert (row.decode_over_short is None) == (row.policy == "full")
        assert row.decode_over_stock is None and row.note == ""


def test_a_budget_that_holds_everything(engine: Engine) -> None:
    found = run(engine, cases([100], [ECOKV], [Budget.parse(200)]), repetitions=1)
    (row,) = (row for row in found if row.policy == "ecokv")
    assert row.n_kept == 100 and row.note == "nothing to evict" and row.kv_over_full == 1
    assert "nothing to evict" in FORMATS["md"](found)


def test_window_layers_stay(tiny_gemma3_path: Path) -> None:
    with Engine(tiny_gemma3_path, threads=1, gpu_layers=0) as engine:
        found = run(engine, cases([100, 300], [ECOKV], BUDGETS[:1]), repetitions=1)
    assert {row.n_kept for row in found if row.policy == "ecokv"} == {64}


def test_depths_closer_together_than_the_queries_that_vote(engine: Engine) -> None:
    tokens = text_tokens(engine.vocab, 200)
    found = read_prompt(engine, tokens, [100, 104, 110], tail=16)
    assert {depth: saved.mark.n_position for depth, saved in found.saved.items()} == {
        100: 84,
        104: 88,
        110: 94,
    }
    assert list(found.prefill) == [100, 104, 110]


def test_a_window_longer_than_a_batch(tiny_llama_path: Path) -> None:
    policy = Policy.parse("snapkv:window=100")
    with Engine(tiny_llama_path, threads=1, gpu_layers=0, n_batch=32, n_ubatch=32) as engine:
        found = run(engine, cases([300], [policy], BUDGETS[:1]), repetitions=1)
    assert next(row for row in found if row.policy == policy.label).n_kept == 64


def test_the_cache_goes_on_from_the_rows_of_the_prompt(engine: Engine, monkeypatch) -> None:
    """A cache made from saved rows is that of a prompt that was read in one go."""
    from ecokv_local.bench import lanes

    tokens = text_tokens(engine.vocab, 200)
    prompt = read_prompt(engine, tokens, [150], tail=16)
    seen: list[Any] = []

    def append(context: Any, prompt: Prompt, n: int) -> None:
        real(context, prompt, n)
        seen.append(context.logits())

    real = lanes._append
    monkeypatch.setattr(lanes, "_append", append)
    measure(engine, Case(150), prompt, 1)
    context = engine.context(200)
    for part in (tokens[:134], tokens[134:150], *([t] for t in tokens[150:155])):
        context.decode(part)
    assert seen[-1] == pytest.approx(context.logits(), abs=1e-5)
    context.close()


def test_the_prompt_is_text_and_always_the_same(engine: Engine) -> None:
    tokens = text_tokens(engine.vocab, 600)
    assert tokens == text_tokens(engine.vocab, 600) and len(tokens) == 600
    assert text_tokens(engine.vocab, 90) == tokens[:90]
    text = b"".join(engine.vocab.piece(token) for token in tokens).decode(errors="replace")
    assert "The code of" in text


def test_stopping_keeps_what_is_complete(engine: Engine) -> None:
    said: list[str] = []
    found = run(
        engine,
        cases([100, 200], [ECOKV], BUDGETS[:1]),
        repetitions=5,
        progress=said.append,
        stopped=lambda: sum("cache" in text for text in said) > 7,
    )  # 5 to warm up, and 3 more
    assert [row.repetitions for row in found] == [1, 1, 1]
    assert "cache 7 of 30, about " in said[-2] and said[-1].endswith("s left")


def test_stopping_while_reading(engine: Engine) -> None:
    said: list[str] = []
    chosen = cases([900], [ECOKV], BUDGETS)
    found = run(engine, chosen, repetitions=1, progress=said.append, stopped=lambda: bool(said))
    assert found == [] and len(said) == 1


# ---- unpatched libraries


def test_the_stock_libraries_side_by_side(engine: Engine, stock: Path) -> None:
    chosen = cases([200], [ECOKV], [Budget.parse(64)], stock=True)
    found = run(engine, chosen, repetitions=2, stock=stock)
    assert [row.policy for row in found] == ["full", "full", "ecokv", "stock"]
    full = next(row for row in found if row.policy == "full" and row.depth == 200)
    assert full.decode_over_stock and full.prefill_over_stock
    assert found[-1].prefill_tokens_per_s and not found[-1].kv_bytes
    with pytest.raises(UsageError, match="is patched"):
        run(engine, chosen, repetitions=1, stock=library_dir())


def test_a_folder_without_libraries_that_run(engine: Engine, tmp_path: Path) -> None:
    chosen = cases([100], [], [], stock=True)
    with pytest.raises(UsageError, match="there is no libllama"):
        run(engine, chosen, repetitions=1, stock=tmp_path)
    (tmp_path / "libllama.so").write_text("no library")
    with pytest.raises(UsageError, match="does not run the model") as error:
        run(engine, chosen, repetitions=1, stock=tmp_path)
    assert "build/dev/bin/stock" in error.value.hint


def test_a_process_that_ends_early_is_told(engine: Engine, stock: Path) -> None:
    other = Stock(stock, engine)
    other.open(256)
    with pytest.raises(EcokvError, match="ended with 1: the rows do not fit"):
        other.restore(50, SimpleNamespace(data=b"x" * 100, mark=SimpleNamespace(n_position=50)))
    other.close()
    other.close()


# ---- rows


def test_ratios_are_of_the_same_repetition() -> None:
    (case,) = cases([100], [ECOKV], [Budget.parse(64)])[-1:]
    all_of_them = [
        measured(Case(64), 20.0, 10.0, 40.0),
        measured(Case(100), 10.0, 5.0, 10.0, kv_bytes=1000),
        measured(case, 20.0, 10.0, 20.0, kv_bytes=500),
        measured(Case(100, stock=True), 40.0, 5.0, 5.0),
    ]
    read = {100: Prefill(50.0, 40.0)}
    _, full, evicted, unpatched = rows(all_of_them, read)
    assert (evicted.decode_over_full, evicted.decode_over_short) == (2.0, 1.0)
    assert (evicted.kv_over_full, evicted.decode_over_stock) == (0.5, 2.0)
    assert (full.kv_over_full, full.decode_over_stock) == (1.0, 1.0)
    assert (full.prefill_over_stock, evicted.prefill_over_stock) == (1.25, None)
    assert (full.prefill_tokens_per_s, unpatched.prefill_tokens_per_s) == (50.0, 40.0)
    assert unpatched.kv_over_full is None and unpatched.policy == "stock"


def test_mean_and_standard_deviation() -> None:
    samples = [Sample(10.0, 64, 1.0, 2.0, 3.0), Sample(12.0, 64, 2.0, 2.0, 4.0)]
    (row,) = rows([Measured(Case(100, ECOKV, BUDGETS[0], 64), samples)], {})
    assert (row.decode_tokens_per_s, row.decode_sd_tokens_per_s) == (11.0, 1.41)
    assert (row.features_ms, row.evict_ms, row.evict_sd_ms) == (1.5, 7.0, 1.414)


def _rows() -> list[Row]:
    read = {100: Prefill(50.0)}
    return rows([measured(Case(100), 10.0, 12.0, kv_bytes=1 << 20)], read, model="m.gguf")


def test_formats_hold_the_same_rows() -> None:
    found = _rows()
    plain = found[0].to_dict()
    assert json.loads(FORMATS["json"](found)) == [plain]
    assert [json.loads(line) for line in FORMATS["jsonl"](found).splitlines()] == [plain]
    (line,) = csv.DictReader(io.StringIO(FORMATS["csv"](found)))
    assert line["decode_tokens_per_s"] == "11.0" and line["kv_over_full"] == "1.0"
    assert line["decode_over_short"] == "" and line["model"] == "m.gguf"
    assert "11.00 ± 1.41" in FORMATS["md"](found)


def test_formats_of_nothing() -> None:
    assert json.loads(FORMATS["json"]([])) == [] and FORMATS["jsonl"]([]) == ""
    assert FORMATS["csv"]([]).startswith("model,threads,cache,")
    assert len(FORMATS["md"]([]).splitlines()) == 2


def test_a_table_has_the_columns_that_say_something() -> None:
    titles, lines = table(_rows())
    assert "decode/stock" not in titles and "decode t/s" in titles
    assert len(lines[0]) == len(titles)
    assert len({len(line) for line in FORMATS["md"](_rows()).splitlines()}) == 1


def test_a_curve_for_every_cache() -> None:
    pytest.importorskip("matplotlib")
    several = [
        measured(case, 10.0, 11.0, kv_bytes=0 if case.stock else 1 << 20)
        for case in cases([100, 200], [ECOKV], BUDGETS, stock=True)
    ]
    figure = curves(rows(several, {}))
    speed, size = figure.axes
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["full", "ecokv 64", "ecokv 50%", "stock"]
    assert len(speed.containers) == 4 and len(size.get_lines()) == 3
    assert Prompt([]).held_bytes == 0
