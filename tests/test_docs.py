"""What the documents say of policies is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from ecokv_local import native
from ecokv_local.config import POLICIES
from ecokv_local.reference.policies import score_of

DOCS = Path(__file__).parents[1] / "docs"


def test_method_lists_every_policy_with_its_defaults() -> None:
    rows = re.findall(
        r"^\| `([\w+]+)` \|.*\| (\d+) \| (\d+) \|$", (DOCS / "method.md").read_text(), re.MULTILINE
    )
    single = [p for p in POLICIES.values() if "+" not in p.name]
    assert rows == [(p.name, str(p.sinks), str(p.recent)) for p in single]


def test_python_native_and_reference_know_the_same_policies() -> None:
    lib = native.lib
    numbers = [n for n in range(0x200) if lib.llama_ecokv_policy_name(n) is not None]
    names = [lib.llama_ecokv_policy_name(n) for n in numbers]
    assert {name.decode() for name in names} == set(POLICIES)
    assert [lib.llama_ecokv_policy_by_name(name) for name in names] == numbers
    assert all(callable(score_of(name)) for name in POLICIES if name != "none")
    for wrong in (b"ecokv+ecokv", b"none+ecokv", b"snapkv+", b"+ecokv", b"snapkv+snapkv"):
        assert lib.llama_ecokv_policy_by_name(wrong) < 0
