"""What `ecokv analyze` measures: parts of the score, correlations, attention that is held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pictures import noise

from ecokv_local import Engine, EvictionConfig
from ecokv_local.analyze.measure import correlations, kept_of, kinds_of
from ecokv_local.analyze.reading import Analysis, analyze
from ecokv_local.analyze.report import head_rows, kept_rows, save
from ecokv_local.budget import Budget
from ecokv_local.errors import EcokvError, UsageError
from ecokv_local.evaluate.items import Item
from ecokv_local.evaluate.variants import Policy
from ecokv_local.parts import Parts, parts

pytest.importorskip("scipy")

POLICIES = [Policy.parse(name) for name in ("snapkv:window=16", "ecokv", "streaming")]
BUDGETS = [Budget.parse(b) for b in ("30%", "60%")]


def item(name: str, pictures: int = 1) -> Item:
    return Item(
        "own", "k", name, f"What is {name}?", ("x",),
        images=lambda: tuple(noise(i) for i in range(pictures)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1, gpu_layers=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def found(engine: Engine) -> Analysis:
    return analyze(engine, [item("this"), item("that")], POLICIES, BUDGETS, n_ctx=512)


def test_shapes_and_ranges(found: Analysis) -> None:
    assert found.n_prompts == 2 and found.n_image_tokens == 36
    for values in found.heads.values():
        assert values.shape == (2, 2) and ((values >= 0) & (values <= 1)).all()
    assert found.kinds["image"].n == 36
    assert found.kinds["all"].n == round(found.n_tokens) - 12  # sinks and recents
    for kind in found.kinds.values():
        assert (np.abs(kind.rank_id[np.isfinite(kind.rank_id)]) <= 1).all()


def test_what_policies_hold(found: Analysis) -> None:
    assert list(found.kept) == [(p.label, str(b)) for p in POLICIES for b in BUDGETS]
    for (_, budget), kept in found.kept.items():
        assert kept.tokens["all"] == pytest.approx(float(budget[:-1]) / 100, abs=0.02)
        assert 0 < kept.mass["all"] <= 1
    for policy in POLICIES:
        small, large = (found.kept[policy.label, str(b)].mass["all"] for b in BUDGETS)
        assert small < large


def test_tables_pictures_and_page(found: Analysis, tmp_path: Path) -> None:
    assert len(kept_rows(found)) == 6 and len(head_rows(found)) == 3 + 3 * 4
    for path in save(found, tmp_path):
        assert path.stat().st_size > 500
    (tmp_path / "file").write_text("x")
    with pytest.raises(EcokvError, match="file"):
        save(found, tmp_path / "file" / "x")


def test_text_alone_has_no_image_tokens(engine: Engine) -> None:
    found = analyze(engine, [item("a longer text than before, with words", 0)], POLICIES, BUDGETS)
    assert found.n_image_tokens == 0
    assert not np.isfinite(found.kinds["image"].rank_id).any()
    assert all("image" not in kept.mass for kept in found.kept.values())
    assert all(row[1] != "image" for row in head_rows(found))


def test_a_prompt_that_is_too_short(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Policy("ecokv", EvictionConfig(recent=500))
    monkeypatch.setattr("ecokv_local.analyze.reading._OURS", few)
    with pytest.raises(UsageError, match="too short"):
        analyze(engine, [item("it", 0)], [few], BUDGETS)


# ---- numbers that are known


def made(importance: list[float], diversity: list[float]) -> Parts:
    row = {"importance": importance, "diversity": diversity}
    row |= {"attention": importance, "cosine": diversity, "euclid": importance}
    rows = {name: np.array([[values]]) for name, values in row.items()}
    return Parts(**rows, weight=np.ones((1, 1)), r_cos=np.ones((1, 1)), r_euc=np.ones((1, 1)))


def test_correlations_of_known_values() -> None:
    up = [float("nan"), *map(float, range(10))]
    down = [float("nan"), *map(float, range(10, 0, -1))]
    rows = np.ones(11, bool)
    same, against = correlations(made(up, up), rows), correlations(made(up, down), rows)
    assert (same.n, same.overlap_id[0, 0]) == (10, 1)
    assert same.rank_id[0, 0] == pytest.approx(1)
    assert against.rank_id[0, 0] == pytest.approx(-1) and against.overlap_id[0, 0] == 0
    few = correlations(made(up, up), rows & (np.arange(11) < 5))
    assert few.n == 4 and np.isnan(few.rank_id).all()


def test_attention_held_by_kind() -> None:
    attention = np.array([[[4.0, 3.0, 2.0, 1.0]]])
    kinds = kinds_of(np.array([False, True, True, False]))
    kept = kept_of(attention, np.array([[[-1, 0, 2]]], np.int32), kinds)
    assert kept.mass == pytest.approx({"all": 0.6, "image": 0.4, "text": 0.8})
    assert kept.tokens == pytest.approx({"all": 0.5, "image": 0.5, "text": 0.5})


def test_parts_need_candidates() -> None:
    features = {"attn": np.zeros((1, 1, 10)), "head_m2": np.zeros((1, 1))}
    with pytest.raises(ValueError, match="10 rows"):
        parts(features, EvictionConfig())
