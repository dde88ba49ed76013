"""Prompts: choice by weight, and templates."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecokv_local.caption.prompts import Prompts, Texts, parse_prompts, variables_of
from ecokv_local.errors import UsageError


def test_files_of_prompts() -> None:
    assert parse_prompts("\ufeffDescribe it.\n", "p") == Prompts(("Describe it.",))
    assert parse_prompts("{{ stem }}: what is it?", "p").texts == ("{{ stem }}: what is it?",)
    assert parse_prompts("[image] what is it?", "p").texts == ("[image] what is it?",)
    assert parse_prompts('["a", {"prompt": "b", "weight": 3}]', "p") == Prompts(
        ("a", "b"), (1.0, 3.0)
    )
    text = '{"seed": 7, "prompts": ["a", {"text": "b", "weight": 0}]}'
    assert parse_prompts(text, "p") == Prompts(("a", "b"), (1.0, 0.0), 7)
    assert parse_prompts(text, "p", seed=9).seed == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "[]",
        '["a", 3]',
        '[{"prompt": "a", "weight": -1}]',
        '[{"prompt": "a", "weight": true}]',
        '[{"prompt": "a", "weight": NaN}]',
        '[{"prompt": " "}]',
        '["a",',
        '{"prompts": "a"}',
        '{"prompts": ["a"], "seed": "x"}',
        '[{"prompt": "a", "weight": 0}]',
    ],
)
def test_files_that_cannot_be_used(text: str) -> None:
    with pytest.raises(UsageError, match=r"prompts\.json"):
        parse_prompts(text, "prompts.json")


@given(st.integers(), st.text())
def test_a_picture_always_gets_the_same_prompt(seed: int, key: str) -> None:
    prompts = Prompts(("a", "b", "c"), (1.0, 0.0, 2.5), seed)
    assert prompts.choose(key) == prompts.choose(key) != "b"


def test_prompts_are_chosen_by_weight() -> None:
    prompts = Prompts(("a", "b"), (1.0, 3.0), 5)
    counts = Counter(prompts.choose(f"{i}.png") for i in range(4000))
    assert 900 < counts["a"] < 1100
    other = Prompts(("a", "b"), (1.0, 3.0), 6)
    assert any(other.choose(f"{i}.png") != prompts.choose(f"{i}.png") for i in range(50))


HEADER = {"width": 4, "height": 3, "exif": {"Model": "X100", "ISO": 200}}


def rendered(text: str, header: Any = HEADER) -> str:
    return Texts([("-p", text)]).render(text, variables_of("a/sub/b [x].jpg", 12, header))


def test_templates() -> None:
    assert rendered("{{ stem }}{{ extension }} in {{ folder }}") == "b [x].jpg in sub"
    assert rendered("{{ bytes }}, {{ width }}x{{ height }}") == "12, 4x3"
    assert rendered("{{ exif.Model }}/{{ exif.None }}/{{ exif.ISO + 1 }}") == "X100//201"
    assert rendered("{% if exif.Model %}by {{ exif.Model }}{% endif %}\n") == "by X100\n"
    assert rendered("no {template} here") == "no {template} here"


def test_the_picture_is_opened_only_if_a_template_asks_for_it() -> None:
    assert not Texts([("-p", "{{ name }} {{ bytes }}")]).needs_header
    assert Texts([("-p", "x"), ("--append", "{{ exif.Model }}")]).needs_header


@pytest.mark.parametrize(
    "text", ["{{ nme }}", "{{ name", "{% if %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"]
)
def test_templates_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="--prepend"):
        Texts([("--prepend", text)])


@pytest.mark.parametrize(
    "text",
    ["{{ name.__class__.__mro__ }}", "{{ exif.update({}) }}", "{{ 1 // 0 }}", "{{ exif.a.b.c }}"],
)
def test_templates_that_fail_on_a_picture_fail_there_only(text: str) -> None:
    with pytest.raises(UsageError, match=r"-p: a/sub/b \[x\]\.jpg: "):
        rendered(text)
