"""Fixtures of the command line's tests: an engine without a model, and three ways to run `ecokv`.

`ecokv` runs it in this process, `program` in another one, `terminal` in another one on a
pseudo-terminal. The user's own settings and history are never touched.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ecokv_local
from ecokv_cli.main import main

sys.path.insert(0, str(Path(__file__).parent))
from fakes import FakeEngine
from processes import Terminal, command, environment


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        assert self.out.count("\n") == 1 and self.out.endswith("\n"), self.out
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No setting, file or history of the person who runs the tests; an empty working folder."""
    for name in list(os.environ):
        if name.startswith(("ECOKV_", "HF_")) and name != "ECOKV_LIB_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("ECOKV_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    (work / ".git").mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeEngine]]:
    """The fake engine in place of the real one; `engine.enqueue(...)` sets its answers."""
    FakeEngine.reset()
    monkeypatch.setitem(vars(ecokv_local), "Engine", FakeEngine)
    yield FakeEngine
    FakeEngine.reset()


class _Stream(io.TextIOWrapper):
    """A stream that says whether it is a terminal."""

    def __init__(self, data: bytes = b"", tty: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8", newline="")
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty

    def text(self) -> str:
        self.flush()
        buffer: Any = self.buffer
        return buffer.getvalue().decode()


@pytest.fixture
def ecokv(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run `ecokv` in this process: `ecokv("chat", "-p", "Hi", stdin=b"", tty=False)`."""

    def run(*arguments: Any, stdin: bytes = b"", tty: bool = False) -> Result:
        streams = [_Stream(stdin, tty), _Stream(tty=tty), _Stream(tty=tty)]
        with monkeypatch.context() as patch:
            for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
                patch.setattr(sys, name, stream)
            code = main([str(argument) for argument in arguments])
        return Result(code, streams[1].text(), streams[2].text())

    return run


@pytest.fixture
def program() -> Callable[..., Result]:
    """Run `ecokv` over the fake engine in another process, and wait for its end."""

    def run(queue: list[Any], *arguments: Any, stdin: bytes = b"", **more: str) -> Result:
        done = subprocess.run(
            command(queue, *arguments),
            input=stdin,
            capture_output=True,
            env=environment(**more),
            timeout=30,
            check=False,
        )
        return Result(
            done.returncode, done.stdout.decode(errors="backslashreplace"), done.stderr.decode()
        )

    return run


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Start `ecokv` over the fake engine on a pseudo-terminal."""
    started: list[Terminal] = []

    def start(queue: list[Any], *arguments: Any, **more: str) -> Terminal:
        started.append(Terminal(command(queue, *arguments), **more))
        return started[-1]

    yield start
    for each in started:
        each.close()
