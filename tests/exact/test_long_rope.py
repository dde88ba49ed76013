"""Models whose rotation depends on the length of the context: that of the conversation, however few
cells there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from invariants import assert_same_logits, decode_all, random_tokens

from ecokv_local.budget import Budget
from ecokv_local.config import EvictionConfig
from ecokv_local.context import Context

N_CTX = 4096  # the model was trained for 512
PROMPT = random_tokens(700, 200)
CONTINUATION = random_tokens(8, 200, seed=1)


@pytest.fixture(scope="module", params=["longrope", "yarn"])
def model(request: pytest.FixtureRequest, tiny_folder: Path) -> Path:
    return tiny.tiny_long(tiny_folder / f"tiny-{request.param}.gguf", request.param)


@pytest.fixture
def few_cells(
    model: Path, load_model: Callable[[Path], Any], open_context: Callable[..., Context]
) -> Iterator[Context]:
    """A context of ``N_CTX`` positions that begins with 256 cells."""
    params = open_context(model, n_cells=N_CTX).params
    context = Context(load_model(model), replace(params, n_first=256))
    yield context
    context.close()


def logits(context: Context) -> np.ndarray:
    first = [decode_all(context, PROMPT[i : i + 100]) for i in range(0, len(PROMPT), 100)][-1]
    return np.stack([first, *(decode_all(context, [token]) for token in CONTINUATION)])


def test_factors_follow_the_positions_not_the_cells(
    model: Path,
    few_cells: Context,
    open_context: Callable[..., Context],
    stock_logits: Callable[..., np.ndarray],
) -> None:
    whole, short = open_context(model, n_cells=N_CTX), open_context(model, n_cells=512)
    few_cells.enable(8)
    few_cells.resize(1024)
    ours = logits(few_cells)
    assert_same_logits(ours, logits(whole), "fewer cells, the same rotation")
    reference = stock_logits(model, whole, PROMPT, CONTINUATION)
    np.testing.assert_allclose(ours, reference, atol=1e-3)  # read in other parts
    if "longrope" in model.name:  # short factors would be seen
        some = [decode_all(context, PROMPT[:100]) for context in (short, open_context(model))]
        assert np.abs(some[0] - some[1]).max() > 0.1


def test_a_prompt_beyond_the_trained_context_within_a_budget(few_cells: Context) -> None:
    few_cells.enable(8)
    config = EvictionConfig(budget=Budget.parse("64"))
    for i in range(0, len(PROMPT), 50):
        decode_all(few_cells, PROMPT[i : i + 50])
        few_cells.evict(config, 64)
        assert few_cells.n_rows <= 64
    assert few_cells.n_position == len(PROMPT)
    assert np.isfinite(decode_all(few_cells, CONTINUATION)).all()
