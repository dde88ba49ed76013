"""`ecokv_local.validate` finds what is broken, and names the layer, the head and the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecokv_local import Engine, EvictionConfig, inspection
from ecokv_local.validate import validate

pytest.importorskip("numba")

TEXT = "Hello there, what is going on in this world of ours? " * 5
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, threads=1, n_ctx=512, gpu_layers=0) as engine:
        yield engine


def tampered_features(monkeypatch: pytest.MonkeyPatch, change: Callable[[Arrays], None]) -> None:
    real = inspection.features

    def features(*args: Any, **kwargs: Any) -> Arrays:
        arrays = real(*args, **kwargs)
        change(arrays)
        return arrays

    monkeypatch.setattr(inspection, "features", features)


def swap_heads(arrays: Arrays, names: tuple[str, ...] = inspection.FEATURES) -> None:
    for name in (*names, "head_m2"):
        arrays[name][1] = arrays[name][1, ::-1].copy()


def scale(name: str, layer: int, head: Any, by: float = 1.01) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name][layer, head] *= by

    return change


def one_value(arrays: Arrays) -> None:
    arrays["attn"][1, 0, 77] += 0.5


def stride(arrays: Arrays) -> None:
    for name in inspection.FEATURES:
        arrays[name][0, 1] = np.roll(arrays[name][0, 1], 3) * 1.5


def not_a_number(arrays: Arrays) -> None:
    for name in ("key_norm", "key_cos", "key_euc", "value_norm"):
        arrays[name][1, 1, 50] = np.nan


@pytest.mark.parametrize(
    ("change", "layer", "head", "what", "words"),
    [
        (scale("attn", 1, 1), 1, 1, "attn", "attention of head 1 alone"),
        (scale("attn", 0, slice(None)), 0, 0, "attn", "scale, soft cap"),
        (scale("attn_last", 0, 0), 0, 0, "attn_last", "the last query"),
        (scale("key_cos", 1, 0), 1, 0, "key_cos", "normalisation"),
        (scale("key_euc", 0, 1), 0, 1, "key_euc", "centroid or distance"),
        (scale("value_norm", 0, 1), 0, 1, "value_norm", "rows of V"),
        (scale("key_norm", 0, 0), 0, 0, "key_norm", "rows of K"),
        (one_value, 1, 0, "attn", "one row only (row 77 of head 0"),
        (swap_heads, 1, 0, "key_norm", "head 0 holds the values of head 1 (all features)"),
        (stride, 0, 1, "key_norm", "all rows of head 1 differ, K and V alike: stride"),
        (not_a_number, 1, 1, "key_norm", "only one of the two sees NaN"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_features_that_differ(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Arrays], None],
    layer: int,
    head: int,
    what: str,
    words: str,
) -> None:
    tampered_features(monkeypatch, change)
    report = validate(engine, TEXT)
    found = report.first_difference
    assert not report.ok and found is not None
    assert (found.check, found.layer, found.head, found.what) == ("features", layer, head, what)
    assert words in found.cause, found
    assert found.rank is not None and found.position == found.rank
    assert found.native != found.reference and not report.layers[layer].ok
    assert report.layers[1 - layer].ok


def test_a_row_of_nan_that_takes_part(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both see that the row is none, but native means and softmax were taken over it."""
    real = inspection.rows

    def rows(context: Any, layer: int, *, value: bool) -> np.ndarray:
        raw = real(context, layer, value=value)
        if layer == 1 and not value:
            raw.view(np.float16)[50, 64] = np.nan  # of head 1
        return raw

    monkeypatch.setattr(inspection, "rows", rows)
    tampered_features(monkeypatch, not_a_number)
    found = validate(engine, TEXT).first_difference
    assert found is not None and (found.check, found.layer, found.head) == ("features", 1, 1)
    assert "only heads with NaN or Inf differ (head 1: row 50)" in found.cause


def test_centroids_over_all_rows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inspection.features
    monkeypatch.setattr(inspection, "features", lambda c, **_: real(c, sinks=0, recent=0))
    found = validate(engine, TEXT).first_difference
    assert found is not None and (found.check, found.layer) == ("features", 0)
    assert "centroids: native code takes them over sinks and recents too" in found.cause


@pytest.mark.parametrize("by", [2.0, 8.0])
def test_a_wrong_scale(engine: Engine, monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    real = inspection.layer_info

    def layer_info(context: Any, layer: int) -> Any:
        info, sinks = real(context, layer)
        info.kq_scale *= by if layer == 1 else 1
        return info, sinks

    monkeypatch.setattr(inspection, "layer_info", layer_info)
    found = validate(engine, TEXT).first_difference
    assert found is not None and (found.layer, found.head, found.what) == (1, 0, "attn")
    assert f"native code scores with 0.125, the layer says {0.125 * by:g}" in found.cause


def test_a_soft_cap_left_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inspection.layer_info

    def layer_info(context: Any, layer: int) -> Any:
        info, sinks = real(context, layer)
        info.soft_cap = 0.5
        return info, sinks

    monkeypatch.setattr(inspection, "layer_info", layer_info)
    found = validate(engine, TEXT).first_difference
    assert found is not None and "soft cap of 0.5 is left out by native code" in found.cause


def test_other_window_queries(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inspection.queries

    def queries(context: Any, layer: int) -> Any:
        q, positions = real(context, layer)
        return q[:, ::-1].copy(), positions - 1

    monkeypatch.setattr(inspection, "queries", queries)
    found = validate(engine, TEXT).first_difference
    assert found is not None and found.what == "attn" and found.cause.startswith("window queries")


def test_kept_sets_that_differ(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inspection.plan

    def plan(*args: Any) -> np.ndarray:
        keep = real(*args)
        gone = np.setdiff1d(np.arange(20, 200), keep[1, 1])[0]
        at = np.flatnonzero((keep[1, 1] > 20) & (keep[1, 1] < 200))[0]
        keep[1, 1, at] = gone
        keep[1, 1].sort()
        return keep

    monkeypatch.setattr(inspection, "plan", plan)
    report = validate(engine, TEXT, policies=["snapkv", "ecokv"])
    found = report.first_difference
    assert found is not None and (found.check, found.policy) == ("kept", "snapkv")
    assert (found.layer, found.head) == (1, 1) and "not the top of its own scores" in found.cause
    assert all(p.layers[1].n_unequal == p.layers[1].n_wrong == 1 for p in report.policies)
    assert all(p.layers[1].bytes_unequal == 0 for p in report.policies)  # the plan was applied


def test_rounding_at_the_cut_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows whose attention differs by less than the tolerance change places."""
    seen: list[Arrays] = []
    with monkeypatch.context() as patch:
        tampered_features(patch, lambda arrays: seen.append(arrays))
        validate(engine, TEXT, policies="snapkv", eviction=EvictionConfig(budget=64))
    attn = seen[0]["attn"][0, 0].astype(np.float64)
    candidates = attn[: len(attn) - 8]
    order = np.argsort(-candidates)
    gaps = -np.diff(candidates[order]) / candidates.mean()
    gaps[gaps < 3e-6] = 1.0
    k = int(np.argmin(gaps)) + 1  # the cut lies between the k-th and the next
    assert gaps[k - 1] < 9e-5
    a, b = order[k - 1], order[k]

    def swap(arrays: Arrays) -> None:
        arrays["attn"][0, 0, [a, b]] = arrays["attn"][0, 0, [b, a]]

    tampered_features(monkeypatch, swap)
    config = EvictionConfig("snapkv", budget=k + 8, kernel=1)
    report = validate(engine, TEXT, policies="snapkv", eviction=config)
    found = report.first_difference
    assert found is not None and (found.check, found.layer, found.head) == ("end_to_end", 0, 0)
    assert found.rank in (a, b) and found.cause.startswith("rounding: features agree")
    assert all(layer.ok for layer in report.layers)
    assert report.policies[0].layers[0].n_wrong == 1 and report.policies[0].layers[0].n_ties == 0


def after_apply(
    monkeypatch: pytest.MonkeyPatch, name: str, budget: int, change: Callable[..., None]
) -> None:
    """Let ``inspection.<name>`` tell something else once a context is evicted."""
    real = getattr(inspection, name)

    def told(context: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(context, *args, **kwargs)
        if context.n_rows == budget:
            change(result, *args, **kwargs)
        return result

    monkeypatch.setattr(inspection, name, told)


def test_one_flipped_bit_of_a_moved_row(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def flip(rows: np.ndarray, layer: int, *, value: bool) -> None:
        if layer == 1 and value:
            rows[30, rows.shape[1] // 2 + 5] ^= 16  # of head 1

    after_apply(monkeypatch, "rows", 64, flip)
    report = validate(engine, TEXT, eviction=EvictionConfig(budget=64))
    found = report.first_difference
    assert found is not None and (found.check, found.layer, found.head) == ("rows", 1, 1)
    assert found.what == "byte 5 of the row of V" and "1 bit of one row" in found.cause
    assert found.rank is not None and found.rank >= 30
    assert report.policies[0].layers[1].bytes_unequal == 1


def test_a_position_that_is_wrong(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def move(kept: np.ndarray) -> None:
        kept[0, 1, 10] += 1

    after_apply(monkeypatch, "kept", 64, move)
    found = validate(engine, TEXT, eviction=EvictionConfig(budget=64)).first_difference
    assert found is not None and (found.check, found.layer, found.head) == ("positions", 0, 1)
    assert found.native == float(found.reference) + 1 and "rows are right" in found.cause


def test_the_earliest_check_is_the_one_that_is_told(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tampered_features(monkeypatch, scale("attn", 1, 1, 40.0))
    after_apply(monkeypatch, "kept", 64, lambda kept: kept.fill(0))
    report = validate(engine, TEXT, eviction=EvictionConfig(budget=64))
    found = report.first_difference
    assert found is not None and (found.check, found.layer) == ("features", 1)
    assert report.policies[0].layers[0].positions_unequal > 0
