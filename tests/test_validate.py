"""`ecokv_local.validate`: it agrees on healthy models, and finds and names what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ecokv_local import Engine, EvictionConfig
from ecokv_local.cache_types import TYPES
from ecokv_local.errors import EcokvError, UsageError
from ecokv_local.validate import Report, policies, run, validate
from ecokv_local.validate.cause import of_kept, of_rows
from ecokv_local.validate.compare import compare_kept, gathered, relative_error
from ecokv_local.validate.dequantise import dequantise

pytest.importorskip("numba")

TEXT = "Hello there, what is going on in this world of ours? " * 5


# ---- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"iq4_nl"}))  # gguf cannot write that one
def test_stored_rows_come_back(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    values = np.tile(np.array([1.0, -1.0, 0.5, 0.0], np.float32), 32).reshape(2, 64)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType(TYPES[name])).view(np.uint8)
    np.testing.assert_allclose(dequantise(raw, name), values, atol=0.15)


def test_sets_may_differ_by_ties_at_the_cut_only() -> None:
    scores = np.array([[np.inf, 5.0, 1.0 + 5e-7, 1.0, 0.5, np.inf]], np.float32)
    expected = np.array([[0, 1, 2, 5]], np.int32)
    tie = compare_kept(np.array([[0, 1, 3, 5]], np.int32), expected, scores)
    assert (tie.n_equal, tie.n_wrong, len(tie.differ)) == (3, 0, 2)
    wrong = compare_kept(np.array([[0, 1, 4, 5]], np.int32), expected, scores)
    assert (wrong.n_equal, wrong.n_wrong) == (3, 1) and wrong.wrong[0][:2] == (0, 4)


def test_a_number_against_none_is_an_infinite_error() -> None:
    a, b = np.array([1.0, np.nan, np.nan]), np.array([np.nan, 1.0, np.nan])
    assert relative_error(a, b, np.ones(3)).tolist() == [np.inf, np.inf, 0.0]


def test_causes_of_kept_sets() -> None:
    scores = np.array([[3.0, 1.0, 1.0, 2.0]], np.float32)
    earlier, twice, bad = ([[0, 1, 3]], [[0, 3, 3]], [[1, 2, 3]])
    for kept, word in ((earlier, "ties"), (twice, "twice"), (bad, "not the top")):
        assert word in of_kept("snapkv", scores, scores, np.array(kept, np.int32), 3, 0)
    other = scores * np.float32(1.01)
    assert "arithmetic" in of_kept("snapkv", other, scores, np.array(bad, np.int32), 3, 0)


def test_causes_of_moved_rows() -> None:
    before = np.random.default_rng(0).integers(0, 256, (9, 8), np.uint8)  # 2 heads of 4 bytes
    keep = np.array([[0, 3, 8], [1, 3, 8]], np.int32)
    expected = gathered(before, keep)
    assert expected[1, 1].tolist() == before[3, 4:].tolist()

    def cause(change: Callable[[np.ndarray], None]) -> str:
        after = expected.copy()
        change(after)
        return of_rows(before, after, expected, keep, 0, 1)

    def head(rows: np.ndarray) -> None:
        rows[1, 0] = before[3, 4:]

    def rank(rows: np.ndarray) -> None:
        rows[1, 0] = before[4, :4]

    def bit(rows: np.ndarray) -> None:
        rows[1, 0, 2] ^= 4

    def garbage(rows: np.ndarray) -> None:
        rows[1:] ^= 0x5A

    assert "head 0 holds the row of head 1" in cause(head)
    assert "rank 4 was moved in place of that of rank 3" in cause(rank)
    assert "1 bit of one row" in cause(bit)
    assert "never quantised again" in cause(garbage)


def test_uneven_policies_are_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from ecokv_local import config

    fake = {n: config.PolicyInfo(n, "", 0, 8) for n in ("pyramid", "ada", "new")}
    monkeypatch.setattr(config, "POLICIES", config.POLICIES | fake)
    monkeypatch.setattr(policies, "POLICIES", config.POLICIES)
    chosen, skipped = policies.choose("all", EvictionConfig(budget=64))
    uneven = {f"{name}{plus}" for name in ("pyramid", "ada") for plus in ("", "+ecokv")}
    assert {c.policy for c in chosen} == set(config.POLICIES) - uneven - {"none", "new"}
    reasons = {s.policy: s.reason for s in skipped}
    assert reasons.keys() == uneven | {"new"}
    assert "budgets of their own" in reasons["ada"] and "library" in reasons["new"]
    for name in ("none", "pyramid"):
        with pytest.raises(UsageError):
            policies.choose(name, EvictionConfig(budget=64))


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="numba") as found:
        run.require_packages()
    assert found.value.hint == 'pip install "ecokv-local[validate]"'


# ---- healthy models ------------------------------------------------------------------------------


def assert_agrees(report: Report, tolerance: float) -> None:
    assert report.ok, report.first_difference
    for layer in report.layers:
        assert layer.ok and max(layer.tolerances.values()) <= tolerance
        assert all(0 <= error <= tolerance for error in layer.errors.values())
        assert layer.errors["attn"] > 0  # f32 against f64: something was computed
    for policy in report.policies:
        assert policy.ok and policy.budget < report.n_rows
        assert all(layer.n_kept >= policy.budget for layer in policy.layers)
    json.dumps(report.to_dict())


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, threads=1, n_ctx=512, gpu_layers=0) as engine:
        yield engine


@pytest.mark.parametrize(
    ("types", "flash_attn", "tolerance"),
    [
        ("f16", "off", 1e-4),
        ("bf16", "on", 1e-4),
        ("f32", "on", 1e-4),
        ("q8_0", "on", 1e-3),
        ("q4_0", "on", 1e-3),
        ("q5_1", "on", 1e-3),
        ("iq4_nl", "on", 1e-3),
    ],
)
def test_cache_types(tiny_llama_path: Path, types: str, flash_attn: str, tolerance: float) -> None:
    with Engine(
        tiny_llama_path,
        threads=1,
        n_ctx=512,
        gpu_layers=0,
        flash_attn=flash_attn,
        cache_type_k=types,
        cache_type_v=types,
    ) as engine:
        report = validate(engine, TEXT)
        assert (report.cache_type_k, report.flash_attn) == (types, flash_attn == "on")
        assert_agrees(report, tolerance)


def test_every_policy_and_other_switches(engine: Engine) -> None:
    config = EvictionConfig(budget="30%", window=5, kernel=3, value_norm="add", compose="sum")
    report = validate(engine, TEXT, policies="all", eviction=config)
    assert_agrees(report, 1e-4)
    assert len(report.policies) + len(report.skipped) == len(policies.POLICIES) - 1
    assert report.n_query == report.window == 5
    assert min(policy.share_equal for policy in report.policies) >= 0.999


def test_a_sliding_window_model(tiny_gemma3_path: Path) -> None:
    with Engine(tiny_gemma3_path, threads=1, n_ctx=512, gpu_layers=0) as engine:
        report = validate(engine, TEXT, policies=["ecokv", "tova"])
    assert_agrees(report, 1e-4)
    assert [layer.layer for layer in report.layers] == [1, 3] and report.n_layer_other == 2
    assert report.layers[0].scale == 1.0  # queries are scaled before
    assert any("2 sliding-window layers" in text for text in report.warnings)


@pytest.mark.parametrize("types", ["f16", "q8_0"])
def test_an_image_under_mrope(
    tiny_qwen2vl_path: Path, tiny_qwen2vl_mmproj_path: Path, types: str
) -> None:
    pixels = np.random.default_rng(7).integers(0, 255, (112, 168, 3), np.uint8)
    with Engine(
        tiny_qwen2vl_path,
        tiny_qwen2vl_mmproj_path,
        threads=1,
        n_ctx=512,
        gpu_layers=0,
        cache_type_k=types,
        cache_type_v=types,
    ) as engine:
        report = validate(engine, "What is this?", [Image.fromarray(pixels)], policies="all")
    assert_agrees(report, 1e-3)
    assert report.n_image_tokens > 8


@pytest.mark.slow
@pytest.mark.parametrize("types", ["f16", "q8_0"])
def test_the_built_in_model_with_a_scene(smollm2_path: Path, types: str) -> None:
    from ecokv_local.evaluate.scenes import scene
    from ecokv_local.models import built_in

    if built_in().mmproj is None:
        pytest.skip("the vision tower is not part of this tree")
    picture = scene(0, "test").image
    with Engine(threads=1, gpu_layers=0, cache_type_k=types, cache_type_v=types) as engine:
        report = validate(engine, "What is in the picture?", [picture])
    assert_agrees(report, 1e-4 if types == "f16" else 1e-3)
    assert report.n_image_tokens > 0 and len(report.layers) == 30


def test_a_prompt_that_fits_the_budget_is_told(engine: Engine) -> None:
    report = validate(engine, "Hi", eviction=EvictionConfig(budget=400))
    assert report.ok and any("nothing is evicted" in text for text in report.warnings)


def test_errors_of_the_session_come_through(engine: Engine) -> None:
    with pytest.raises(EcokvError, match="cells"):
        validate(engine, TEXT * 20)
    small = replace(EvictionConfig(), budget=13)
    assert validate(engine, "Hi " * 30, eviction=small).ok
