"""Help, version and the documentation made from them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from processes import ROOT, environment

import ecokv_local
from ecokv_cli.options import ALL

TYPER = tuple(int(part) for part in version("typer").split(".")[:2])


def test_version(ecokv):
    result = ecokv("--version")
    assert (result.code, result.out) == (0, f"ecokv {ecokv_local.__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_program_lists_its_commands(ecokv, arguments):
    result = ecokv(*arguments)
    assert result.code == 0
    for name, words in (("chat", "Ask a model about"), ("validate", "Compare the native code")):
        assert re.search(rf"^  {name} +{words}", result.out, re.MULTILINE)


def test_chat_lists_every_flag_under_a_title(ecokv):
    text = ecokv("chat", "--help").out
    for setting in ALL:
        assert all(flag in text for flag in setting.flags)
    for title in ("Model", "Prompt", "Run", "Sampling", "Eviction", "Output"):
        assert f"\n{title}:\n" in text


@pytest.mark.skipif(TYPER < (0, 24), reason="an older typer words its own lines otherwise")
def test_documented_help_is_what_is_printed():
    """`tools/docs.py --check`: docs/help.md cannot rot."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "docs.py", "--check"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--nonsense"], "no such option: --nonsense", "see ecokv --help"),
        (["caht"], "no such command 'caht'", "see ecokv --help"),
        (["chat", "--budgt", "1"], "no such option: --budgt", "see ecokv chat --help"),
        (["chat", "-n"], "option '-n' requires an argument", "see ecokv"),
        (["chat", "a", "b"], "got unexpected extra argument", "see ecokv chat --help"),
    ],
)
def test_mistakes_in_the_command_line(ecokv, engine, arguments, message, hint):
    """The parser's own errors have the shape of all others."""
    result = ecokv(*arguments)
    assert result.code == 2 and result.out == ""
    assert result.err.lower().startswith(f"error: {message}") and f"\n hint: {hint}" in result.err
    assert ecokv(*arguments, "--json").error["type"] == "UsageError"


def test_a_prompt_may_start_with_a_dash(ecokv, engine):
    assert ecokv("chat", "--", "--json").out == "ok\n"
    assert engine.opened[0].sessions[0].asked[0].text == "--json"
    assert ecokv("chat", "-p", "--json").out == "ok\n"
