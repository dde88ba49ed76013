"""`ecokv bench` over the real engine and a tiny model."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.fixture
def flags(tiny_llama_path) -> tuple[Any, ...]:
    return ("bench", "-m", tiny_llama_path, "-t", 1, "-ngl", 0, "-r", 1, "-d", "100,200")


def test_rows_picture_and_page(ecokv, flags, isolated):
    more = ("--budgets", "64", "--policies", "ecokv,snapkv:sinks=4", "--cache-types", "f16,q8_0")
    result = ecokv(*flags, *more, "-fa", "on", "-o", "json", "--plot", "a.png", "--html", "a.html")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert {row["policy"] for row in found} == {"full", "ecokv", "snapkv:sinks=4"}
    assert {row["cache"] for row in found} == {"f16/f16", "q8_0/q8_0"}
    assert len(found) == 2 * (3 + 2 * 2)
    assert (isolated / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (isolated / "a.html").read_text()


def test_a_table(ecokv, flags):
    result = ecokv(*flags, "--budgets", "64")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].split()[1:4] == ["cache", "|", "policy"] and len(lines) == 2 + 5


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (("-d", "100,x"), 2, "x"),
        (("-d", "100,"), 2, "empty place"),
        (("-d", "100000"), 2, "100000"),
        (("-o", "xml"), 2, "xml"),
        (("-r", "0"), 2, "0"),
        (("--budgets", "5"), 5, "13"),
        (("--policies", "nothing"), 2, "nothing"),
        (("--compare-stock", "."), 2, "libllama"),
        (("--plot", "none/../file/x.png"), 1, "x.png"),
    ],
)
def test_wrong_flags(ecokv, flags, isolated, more, code, told):
    (isolated / "file").write_text("x")
    result = ecokv(*flags, *more)
    assert result.code == code, result.err
    assert told in result.err and "Traceback" not in result.err


def test_a_recurrent_model(ecokv, tiny_mamba_path):
    result = ecokv("bench", "-m", tiny_mamba_path, "-ngl", 0, "-r", 1, "-d", 100)
    assert result.code == 4, result.err
