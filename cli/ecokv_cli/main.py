"""The program `ecokv`: parses the command line, runs a command, ends with its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from ecokv_cli import errors
from ecokv_cli.app import app
from ecokv_cli.output import Output
from ecokv_cli.values import TRUE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. No exception leaves this function."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _open_missing_streams()
    try:
        code = _guarded(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _closed_pipe()


def _guarded(arguments: list[str]) -> int:
    try:
        # not `main` of click: it turns a closed pipe into 1
        command = typer.main.get_command(app)
        with command.make_context("ecokv", arguments) as context:
            code = command.invoke(context)
        return code if isinstance(code, int) else errors.OK
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, typer.Abort):
        return errors.INTERRUPTED
    except typer.Exit as end:
        return int(end.exit_code)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else errors.FAILURE
    except Exception as error:
        code, description = errors.describe(error)
        Output(as_json=_wants_json(arguments)).error(description)
        errors.print_traceback_if_asked(error)
        return code


def _wants_json(arguments: list[str]) -> bool:
    """Whether errors are to be objects, also when the command line itself is what is wrong."""
    for argument in reversed(arguments[: _end_of_flags(arguments)]):
        if argument in ("--json", "--no-json"):
            return argument == "--json"
    return os.environ.get("ECOKV_JSON", "").strip().lower() in TRUE


def _end_of_flags(arguments: list[str]) -> int:
    return arguments.index("--") if "--" in arguments else len(arguments)


def _open_missing_streams() -> None:
    """A program started without standard streams has None for them; give it empty ones."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _closed_pipe() -> int:
    """Whoever read our output is gone: end quietly, and keep the interpreter from complaining."""
    empty: Any = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(empty, stream.fileno())
        except (OSError, ValueError):
            pass
    return errors.CLOSED_PIPE


if __name__ == "__main__":
    sys.exit(main())
