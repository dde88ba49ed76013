"""`ecokv bench`: which caches are made, what they hold, and how rows are told."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from ecokv_local import Engine
from ecokv_local.bench.formats import FORMATS
from ecokv_local.bench.plan import Case, Measured, cases, rows
from ecokv_local.bench.run import run
from ecokv_local.budget import Budget
from ecokv_local.errors import BudgetError, UsageError
from ecokv_local.evaluate.variants import Policy
from ecokv_local.native import library_dir

ECOKV = Policy.parse("ecokv")
BUDGETS = [Budget.parse(b) for b in (64, "50%")]


def test_every_cache_is_of_the_size_that_was_asked_for(tiny_llama_path: Path) -> None:
    with Engine(tiny_llama_path, threads=1, gpu_layers=0) as engine:
        found = run(engine, cases([300, 700], [ECOKV], BUDGETS), repetitions=2)
    kept = {(row.policy, row.budget, row.depth): row.n_kept for row in found}
    assert kept == {
        ("full", "-", 64): 64,
        ("full", "-", 300): 300,
        ("full", "-", 700): 700,
        ("ecokv", "64", 300): 64,
        ("ecokv", "64", 700): 64,
        ("ecokv", "50%", 300): 150,
        ("ecokv", "50%", 700): 350,
    }
    by_case = {(row.policy, row.budget, row.depth): row for row in found}
    assert by_case["full", "-", 700].kv_bytes == 768 * 1024  # 2 layers, 2 heads of 64, f16
    assert by_case["ecokv", "64", 700].kv_ratio == pytest.approx(1 / 3, abs=1e-4)
    for row in found:
        assert row.repetitions == 2 and row.decode_tokens_per_s > 0
        assert (row.features_ms > 0) == (row.policy == "ecokv")
        assert (row.decode_over_full is None) == (row.policy == "full")
        assert (row.decode_over_short is None) == (row.budget != "64")


def test_a_budget_that_holds_everything(tiny_llama_path: Path) -> None:
    with Engine(tiny_llama_path, threads=1, gpu_layers=0) as engine:
        found = run(engine, cases([100], [ECOKV], [Budget.parse(200)]), repetitions=1)
    evicted = next(row for row in found if row.policy == "ecokv")
    assert evicted.n_kept == 100


def test_the_stock_libraries_side_by_side(tiny_llama_path: Path) -> None:
    stock = library_dir() / "stock"
    if not stock.is_dir():
        pytest.skip("no unpatched libraries were built")
    chosen = cases([200], [ECOKV], [Budget.parse(64)], stock=True)
    with Engine(tiny_llama_path, threads=1, gpu_layers=0) as engine:
        found = run(engine, chosen, repetitions=2, stock=stock)
        assert [row.policy for row in found] == ["full", "full", "ecokv", "stock"]
        full = next(row for row in found if row.policy == "full" and row.depth == 200)
        assert full.decode_over_stock is not None
        with pytest.raises(UsageError, match="patched"):
            run(engine, chosen, repetitions=1, stock=library_dir())


def test_stopping_keeps_what_is_complete(tiny_llama_path: Path) -> None:
    said: list[str] = []
    with Engine(tiny_llama_path, threads=1, gpu_layers=0) as engine:
        found = run(
            engine,
            cases([100, 200], [ECOKV], BUDGETS[:1]),
            repetitions=5,
            progress=said.append,
            stopped=lambda: any(text.startswith("repetition 2") for text in said),
        )
    assert {row.repetitions for row in found} == {1, 2}


def test_ratios_are_of_the_same_repetition() -> None:
    full = Measured(Case(100), 100, 1000, speeds=(10.0, 5.0, 10.0))
    evicted = Measured(Case(100, ECOKV, BUDGETS[0]), 64, 500, speeds=(20.0, 10.0, 20.0))
    row = rows([full, evicted], {}, "f16/f16")[1]
    assert (row.decode_over_full, row.kv_ratio, row.decode_over_short) == (2.0, 0.5, None)


def test_what_cannot_be_measured(tiny_llama_path: Path) -> None:
    with pytest.raises(BudgetError):
        cases([100], [ECOKV], [Budget.parse(5)])
    with pytest.raises(UsageError, match="twice"):
        cases([100, 100], [ECOKV], BUDGETS)
    engine = Engine(tiny_llama_path, threads=1, gpu_layers=0)
    with engine, pytest.raises(UsageError, match="8192"):
        run(engine, cases([9000], [], []), repetitions=1)


def test_formats_hold_the_same_rows() -> None:
    found = rows([Measured(Case(100), 100, 1 << 20, speeds=(10.0, 12.0))], {100: 50.0}, "f16/f16")
    plain = found[0].to_dict()
    assert json.loads(FORMATS["json"](found)) == [plain]
    assert [json.loads(line) for line in FORMATS["jsonl"](found).splitlines()] == [plain]
    (line,) = csv.DictReader(io.StringIO(FORMATS["csv"](found)))
    assert line["decode_tokens_per_s"] == "11.0" and line["kv_ratio"] == "1.0"
    assert "11.00 ± 1.41" in FORMATS["md"](found)
    assert json.loads(FORMATS["json"]([])) == []
