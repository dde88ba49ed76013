"""From exceptions to messages and exit codes. The only place that ends a run."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

OK, FAILURE, USAGE, SOME_FAILED, MEMORY, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 3, 5, 130, 141

#: click's base class of usage errors, wherever this version of typer keeps click.
ClickError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def describe(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Exit code and the stable `{"code", "type", "message", "hint"}` of an exception."""
    if isinstance(error, ClickError):
        return USAGE, _of_click(error)
    if hasattr(error, "exit_code") and hasattr(error, "to_dict"):  # an EcokvError
        return int(error.exit_code), dict(error.to_dict())
    if isinstance(error, MemoryError):
        return MEMORY, _shape(
            "out_of_memory", "MemoryLimitError", "out of memory", "try a smaller -c or --budget"
        )
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename is not None else ""
        return FAILURE, _shape("os_error", "OSError", f"{name}{error.strerror}", "")
    return FAILURE, _shape(
        "internal",
        type(error).__name__,
        f"internal error: {type(error).__name__}: {error}",
        "this is a bug; set ECOKV_DEBUG=1 for the traceback",
    )


def usage(message: str, hint: str) -> Exception:
    """A `UsageError` of the library: the same shape as every other error."""
    from ecokv_local.errors import UsageError

    return UsageError(message, hint=hint)


def of_answer(error: dict[str, Any]) -> Exception:
    """The exception behind the `error` of an answer whose finish reason is `error`."""
    from ecokv_local import errors

    kind = getattr(errors, str(error.get("type", "")), errors.EcokvError)
    if not (isinstance(kind, type) and issubclass(kind, errors.EcokvError)):
        kind = errors.EcokvError
    return kind(str(error.get("message", "the answer failed")), hint=str(error.get("hint") or ""))


def print_traceback_if_asked(error: BaseException) -> None:
    """`ECOKV_DEBUG=1` is the one way to see a traceback."""
    if os.environ.get("ECOKV_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)


def _shape(code: str, kind: str, message: str, hint: str) -> dict[str, Any]:
    return {"code": code, "type": kind, "message": message, "hint": hint}


def _of_click(error: Any) -> dict[str, Any]:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path} --help" if context is not None else "see ecokv --help"
    return _shape("usage", "UsageError", message[:1].lower() + message[1:], hint)
