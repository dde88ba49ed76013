"""`ecokv bench` over the real engine and a tiny model."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest
from processes import environment
from real import ECOKV


@pytest.fixture
def flags(tiny_llama_path) -> tuple[Any, ...]:
    return ("bench", "-m", tiny_llama_path, "-t", 1, "-ngl", 0, "-r", 1, "-d", "100,200")


def test_rows_picture_and_page(ecokv, flags, isolated):
    pytest.importorskip("matplotlib")
    more = ("--budgets", "64", "--policies", "ecokv,snapkv:sinks=4", "--cache-types", "f16,q8_0")
    result = ecokv(*flags, *more, "-fa", "on", "-o", "json", "--plot", "a.png", "--html", "a.html")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert {row["policy"] for row in found} == {"full", "ecokv", "snapkv:sinks=4"}
    assert {row["cache"] for row in found} == {"f16/f16", "q8_0/q8_0"}
    assert len(found) == 2 * (3 + 2 * 2)
    assert (isolated / "a.png").read_bytes().startswith(b"\x89PNG")
    page = (isolated / "a.html").read_text()
    assert "<svg" in page and "snapkv:sinks=4" in page and "http://" not in page.split("<svg")[0]


def test_a_table(ecokv, flags):
    result = ecokv(*flags, "--budgets", "64,150")
    assert result.code == 0 and result.err == "", result.err
    lines = result.out.splitlines()
    assert lines[0].split()[1:4] == ["cache", "|", "policy"] and len(lines) == 2 + 2 + 2 + 4
    assert sum("nothing to evict" in line for line in lines) == 1


def test_lists_of_cache_types(ecokv, flags):
    more = ("--budgets", "64", "-ctk", "f16,q8_0", "-ctv", "f16", "-o", "csv")
    result = ecokv(*flags, *more)
    assert result.code == 0, result.err
    found = list(csv.DictReader(io.StringIO(result.out)))
    assert {row["cache"] for row in found} == {"f16/f16", "q8_0/f16"}
    assert {row["policy"] for row in found} == {"full", "ecokv"}


def test_rows_of_the_types_before_are_not_lost(ecokv, flags):
    more = ("--budgets", "64", "-ctv", "f16,q8_0", "-fa", "off", "-o", "json")
    result = ecokv(*flags, *more)
    assert result.code == 2 and "needs flash attention" in result.err
    assert {row["cache"] for row in json.loads(result.out)} == {"f16/f16"}


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (("-d", "100,x"), 2, "x"),
        (("-d", "100,"), 2, "empty place"),
        (("-d", "15"), 2, "from 16"),
        (("-d", "100,100"), 2, "twice"),
        (("-d", "100000"), 2, "8192 positions"),
        (("-o", "xml"), 2, "xml"),
        (("-r", "0"), 2, "0"),
        (("--budgets", "5"), 5, "13"),
        (("--budgets", "0.5"), 2, "write 50%"),
        (("--policies", "nothing"), 2, "nothing"),
        (("-ctk", "f16,f17"), 2, "f17"),
        (("-ctk", "f16", "--cache-types", "f16"), 2, "the same thing"),
        (("--compare-stock", "."), 2, "libllama"),
        (("--plot", "file/x.png"), 1, "x.png"),
    ],
)
def test_wrong_flags(ecokv, flags, isolated, more, code, told):
    (isolated / "file").write_text("x")
    result = ecokv(*flags, *more)
    assert result.code == code, result.err
    assert told in result.err and "Traceback" not in result.err
    assert result.out == ""  # told before anything is measured


def test_a_recurrent_model(ecokv, tiny_mamba_path):
    flags = ("bench", "-m", tiny_mamba_path, "-ngl", 0, "-r", 1, "-d", 100, "-o", "json")
    result = ecokv(*flags, "--budgets", "64")
    assert result.code == 4 and result.out == "", result.err
    result = ecokv(*flags)
    assert result.code == 0 and "the full cache alone is measured" in result.err
    assert [row["policy"] for row in json.loads(result.out)] == ["full"]


def test_an_interruption_prints_what_is_complete(flags, tmp_path):
    process = subprocess.Popen(
        [*ECOKV, *map(str, flags), "-r", "1000", "--budgets", "64", "-o", "json", "-v"],
        env=environment(GOMP_SPINCOUNT="0", ECOKV_HOME=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "measuring, cache 15 of" in line:  # behind the round that warms up
            os.kill(process.pid, signal.SIGINT)
            break
    end = time.monotonic() + 30
    out, _ = process.communicate(timeout=end - time.monotonic())
    assert process.returncode == 130
    found = json.loads(out)
    assert {row["depth"] for row in found} == {64, 100, 200}
    assert all(1 <= row["repetitions"] < 1000 for row in found)
