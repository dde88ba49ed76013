"""What the documents say of policies is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from ecokv_local import native
from ecokv_local.config import POLICIES

DOCS = Path(__file__).parents[1] / "docs"


def test_method_lists_every_policy_with_its_defaults() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (\d+) \| (\d+) \|$", (DOCS / "method.md").read_text(), re.MULTILINE
    )
    assert rows == [(p.name, str(p.sinks), str(p.recent)) for p in POLICIES.values()]


def test_python_and_native_know_the_same_policies() -> None:
    names = [native.lib.llama_ecokv_policy_name(i) for i in range(len(POLICIES))]
    assert {name.decode() for name in names} == set(POLICIES)
    assert native.lib.llama_ecokv_policy_name(len(POLICIES)) is None
