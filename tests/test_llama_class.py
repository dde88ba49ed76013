"""The bindings' own ``Llama`` class on our libraries, within a budget of the environment: it knows
nothing of eviction, and must work or fail cleanly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = """
import json, sys
import ecokv_local.native  # the bindings load our libraries
import llama_cpp

job = json.load(sys.stdin)
llama = llama_cpp.Llama(
    job["model"], n_ctx=4096, n_batch=64, n_ubatch=64, n_threads=1, n_gpu_layers=0, verbose=False
)
lib, ctx = ecokv_local.native.lib, llama._ctx.ctx
out = []
for step in job["steps"]:
    if step["do"] == "reset":
        llama.reset()
    if step["do"] == "eval":
        llama.eval(step["tokens"])
        said = []
    elif step["do"] == "generate":
        said = []
        for token in llama.generate(step["tokens"], top_k=1, reset=step.get("reset", True)):
            said.append(token)
            if len(said) == step["n"]:
                break
    rows = lib.llama_ecokv_n_rows(ctx, 0) if lib.llama_ecokv_ring_bytes(ctx) else None
    out.append({"said": said, "rows": rows, "kv": lib.llama_ecokv_kv_bytes(ctx)})
print(json.dumps(out))
"""


def run(
    model: Path, steps: list[dict[str, Any]], **budget: str
) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ECOKV")}
    return subprocess.run(
        [sys.executable, "-c", WORKER],
        input=json.dumps({"model": str(model), "steps": steps}),
        env=env | budget,
        text=True,
        capture_output=True,
        check=False,
    )


def outcome(model: Path, steps: list[dict[str, Any]], **budget: str) -> list[dict[str, Any]]:
    done = run(model, steps, **budget)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def tokens(n: int, start: int = 0) -> list[int]:
    return [(start + i) * 7919 % 200 + 3 for i in range(n)]


@pytest.mark.parametrize("name", ["tiny_llama_path", "tiny_gemma3_path"])
def test_it_stays_within_the_budget_and_the_next_prompt_is_right(
    request: pytest.FixtureRequest, name: str
) -> None:
    model: Path = request.getfixturevalue(name)
    long, other = tokens(1500), tokens(90, start=5000)
    changed = [*long[:700], *tokens(200, start=9000)]  # a common prefix, part of it evicted
    steps = [
        {"do": "generate", "tokens": long, "n": 40},
        {"do": "generate", "tokens": changed, "n": 10},
        {"do": "generate", "tokens": other, "n": 10},
    ]
    within = outcome(model, steps, LLAMA_ECOKV_BUDGET="128", LLAMA_ECOKV_SLACK="32")
    full = outcome(model, steps)
    assert [step["rows"] is None for step in full] == [True] * 3
    assert all(step["rows"] <= 128 + 64 for step in within)
    assert all(step["kv"] * 16 == whole["kv"] for step, whole in zip(within, full, strict=True))
    # what was read in the place of the evicted one is what a fresh cache would read
    fresh = outcome(model, steps[1:2], LLAMA_ECOKV_BUDGET="128", LLAMA_ECOKV_SLACK="32")
    assert within[1]["said"] == fresh[0]["said"]
    assert within[2]["said"] == full[2]["said"]  # it fits: nothing was evicted
    assert within[2]["rows"] == 90 + 9


def test_a_model_that_cannot_be_evicted_is_refused(tiny_mamba_path: Path) -> None:
    done = run(tiny_mamba_path, [], LLAMA_ECOKV_BUDGET="128")
    assert done.returncode != 0
    assert "Failed to create llama_context" in done.stderr
    assert outcome(tiny_mamba_path, []) == []


@pytest.mark.parametrize("name", ["LLAMA_ECOKV_BUDGET", "LLAMA_ECOKV_POLICY", "LLAMA_ECOKV_SLACK"])
def test_a_wrong_value_is_refused(tiny_llama_path: Path, name: str) -> None:
    budget = {"LLAMA_ECOKV_BUDGET": "128"} | {name: "lots"}
    assert run(tiny_llama_path, [], **budget).returncode != 0


def test_our_library_does_not_listen_to_it(tiny_llama_path: Path) -> None:
    code = (
        "import sys; from ecokv_local import Engine\n"
        "with Engine(sys.argv[1], threads=1, n_ctx=1024) as engine:\n"
        "    context = engine.context()\n"
        "    context.decode(list(range(3, 203)))\n"
        "    context.decode(list(range(3, 203)))\n"
        "    print(context.n_rows)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_llama_path)],
        env=os.environ | {"LLAMA_ECOKV_BUDGET": "64"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "400"), done.stderr
