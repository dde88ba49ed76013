"""What `ecokv explain` tells: layout of pictures, parts of the score, kept rows, trace and page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from pictures import noise

from ecokv_local import Engine
from ecokv_local.budget import Budget
from ecokv_local.errors import EcokvError, ModelError, UsageError
from ecokv_local.evaluate.variants import Policy
from ecokv_local.explain import page, trace
from ecokv_local.explain.layout import _padded, _Part, _shown
from ecokv_local.explain.reading import Explanation, explain
from ecokv_local.images import ImageInput

pytest.importorskip("matplotlib")

POLICY = Policy.parse("ecokv")
BUDGETS = [Budget.parse(b) for b in (50, 20)]


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1, gpu_layers=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def found(engine: Engine) -> Explanation:
    images = [noise(1), noise(2, (60, 120))]
    return explain(
        engine, "What <b>is</b> it?", images, policy=POLICY, budgets=BUDGETS, max_tokens=4
    )


def test_rows_and_what_they_stand_for(found: Explanation) -> None:
    assert [(p.columns, p.rows) for p in found.pictures] == [(6, 6), (6, 6)]
    text = "".join(token.text for token in found.tokens)
    assert "What <b>is</b> it?" in text
    assert sum(token.picture is not None for token in found.tokens) == 72
    second = found.pictures[1]
    assert found.tokens[second.first].patch == (0, 0)
    assert found.tokens[second.first + 35].patch == (5, 5)
    assert found.tokens[second.first - 1].picture != 1
    ranks = np.arange(len(found.tokens), dtype=float)
    assert second.grid(ranks)[1, 2] == second.first + 8
    assert list(found.positions) == list(range(len(found.tokens)))


def test_pictures_that_are_cut_into_tiles(
    tiny_tiles_path: Path, tiny_idefics3_mmproj_path: Path
) -> None:
    """Every tile over its own part of its own picture, the whole picture last."""
    images = [noise(1, (128, 128)), noise(2, (100, 50)), noise(1, (128, 128))]
    paths = (tiny_tiles_path, tiny_idefics3_mmproj_path)
    with Engine(*paths, threads=1, gpu_layers=0) as engine:
        found = explain(engine, "What is it?", images, policy=POLICY, budgets=BUDGETS, max_tokens=1)
    first, second, third = found.pictures[:5], found.pictures[5:8], found.pictures[8:]
    pixels, other = np.asarray(images[0]), np.asarray(images[1])
    for square in (first, third):
        assert len(square) == 5
        np.testing.assert_array_equal(square[1].pixels, pixels[:64, 64:])
        np.testing.assert_array_equal(square[2].pixels, pixels[64:, :64])
        np.testing.assert_array_equal(square[4].pixels, pixels)
    np.testing.assert_array_equal(second[1].pixels, other[:, 50:])  # two tiles in one row
    np.testing.assert_array_equal(second[2].pixels, other)
    assert first[1].name.endswith("part 2 of 5") and first[4].name.endswith("whole")
    assert {(p.columns, p.rows) for p in found.pictures} == {(2, 2)}
    starts = [p.first for p in found.pictures]
    assert [found.tokens[start].picture for start in starts] == list(range(13))


def test_a_model_without_the_marks_of_tiles(
    tiny_llama_path: Path, tiny_idefics3_mmproj_path: Path
) -> None:
    with (
        Engine(tiny_llama_path, tiny_idefics3_mmproj_path, threads=1, gpu_layers=0) as engine,
        pytest.raises(ModelError, match="no token for a mark"),
    ):
        explain(engine, "What?", [noise(1)], policy=POLICY, budgets=BUDGETS, max_tokens=1)


def test_parts_of_a_picture_that_are_not_known_are_grey() -> None:
    image = ImageInput.of(noise(1)).load()
    name, pixels = _shown(None, _Part(image, 1, 3), 4, 2)
    assert name.endswith("part 2 of 3") and pixels.shape == (16, 32, 3)
    assert (pixels == 128).all()


def test_a_picture_stands_in_the_middle_of_what_the_model_saw() -> None:
    padded = _padded(np.full((120, 60, 3), 255, np.uint8), 1.0)
    assert padded.shape == (120, 120, 3)
    assert padded[:, 30:90].all() and not padded[:, :30].any() and not padded[:, 90:].any()


def test_every_cut_keeps_its_pairs(found: Explanation) -> None:
    assert [(cut.budget, cut.pairs) for cut in found.cuts] == [("20", 20), ("50", 50)]
    for cut in found.cuts:
        assert (cut.kept.sum(axis=-1) == cut.pairs).all()
        assert cut.kept[..., :4].all() and cut.kept[..., -8:].all()
    small, large = found.cuts
    assert not (small.kept & ~large.kept).any()  # one order of the rows


def test_kept_rows_have_the_best_scores(found: Explanation) -> None:
    n = len(found.tokens)
    for cut in found.cuts:
        scores = cut.scores[..., 4 : n - 8]
        kept = cut.kept[..., 4 : n - 8]
        worst = np.where(kept, scores, np.inf).min(axis=-1)
        best = np.where(kept, -np.inf, scores).max(axis=-1)
        assert (worst >= best).all()


def test_the_parts_make_up_the_score(found: Explanation) -> None:
    parts, n = found.parts, len(found.tokens)
    weight = parts.weight[..., None]
    score = weight * parts.diversity + (1 - weight) * parts.importance
    assert np.isnan(score[..., :4]).all() and np.isnan(score[..., n - 8 :]).all()
    inside = slice(4, n - 8)
    np.testing.assert_allclose(
        score[..., inside], found.cuts[0].scores[..., inside], rtol=1e-3, atol=1e-4
    )
    assert np.allclose(np.nanmean(parts.importance, axis=-1), 1)
    assert ((parts.weight >= 0) & (parts.weight <= 1)).all()


def test_a_trace_is_the_same_again(found: Explanation, engine: Engine, tmp_path: Path) -> None:
    trace.save(found, tmp_path / "a.jsonl")
    again = explain(
        engine,
        "What <b>is</b> it?",
        [noise(1), noise(2, (60, 120))],
        policy=POLICY,
        budgets=BUDGETS,
        max_tokens=4,
    )
    trace.save(again, tmp_path / "b.jsonl")
    data = (tmp_path / "a.jsonl").read_bytes()
    assert data == (tmp_path / "b.jsonl").read_bytes()
    lines = [json.loads(line) for line in data.splitlines()]
    assert len(lines) == 2 * found.cuts[0].kept.size
    kept = [line for line in lines if line["budget"] == "20" and line["kept"]]
    assert len(kept) == 20 * 2 * 2
    patches = [line for line in lines if "patch" in line]
    assert patches and all("token" not in line for line in patches)


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and value]


def test_the_page_is_whole_and_offline(found: Explanation, tmp_path: Path) -> None:
    paths = page.save(found, tmp_path)
    assert {path.name for path in paths} >= {"explain.html", "overview.png", "picture-2-maps.png"}
    for path in paths[1:]:
        assert path.read_bytes().startswith(b"\x89PNG")
    text = paths[0].read_text(encoding="utf-8")
    checker = _Checker()
    checker.feed(text)
    assert all(link.startswith("data:") for link in checker.links)
    assert checker.tags.count("section") == 2 and checker.tags.count("script") == 1
    assert "&lt;b&gt;" in text and "What <b>is" not in text
    assert 'max="1"' in text


def test_pictures_of_an_earlier_prompt_go(
    found: Explanation, engine: Engine, tmp_path: Path
) -> None:
    page.save(found, tmp_path)
    (tmp_path / "picture-of-mine.png").write_text("x")
    one = explain(engine, "What?", [noise(1)], policy=POLICY, budgets=BUDGETS[1:], max_tokens=1)
    paths = page.save(one, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*paths, tmp_path / "picture-of-mine.png"])


def test_a_page_is_small(found: Explanation, tmp_path: Path) -> None:
    assert page.save(found, tmp_path)[0].stat().st_size < 5e6


def test_a_text_alone(engine: Engine, tmp_path: Path) -> None:
    found = explain(engine, "word " * 30, policy=POLICY, budgets=BUDGETS[1:], max_tokens=2)
    assert [path.name for path in page.save(found, tmp_path)] == ["explain.html"]


def test_a_prompt_without_candidates(engine: Engine) -> None:
    policy = Policy.parse("ecokv:recent=500")
    with pytest.raises(UsageError, match="nothing to choose"):
        explain(engine, "Hi", policy=policy, budgets=[Budget.parse("50%")])


def test_a_trace_that_cannot_be_written(found: Explanation, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EcokvError, match="file"):
        trace.save(found, tmp_path / "file" / "t.jsonl")
