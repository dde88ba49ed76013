"""What the user gave to look at and to answer: flags, arguments and standard input."""

from __future__ import annotations

import os
import select
import stat
import sys
from dataclasses import dataclass
from typing import Any

from ecokv_cli.errors import usage
from ecokv_cli.output import Output, is_terminal
from ecokv_cli.settings import Settings

STDIN = "-"
#: Seconds after which a wait for standard input is worth a word.
PATIENCE = 1.0


@dataclass(frozen=True)
class Inputs:
    """A prompt, or None if there is to be a conversation; and pictures, as paths or bytes."""

    prompt: str | None
    images: tuple[str | bytes, ...]


def gather(settings: Settings, positional: str | None, out: Output) -> Inputs:
    """Prompt and pictures of this run, or `UsageError` if there is nothing to answer."""
    prompt = settings.get("prompt")
    if positional is not None:
        if prompt is not None:
            raise usage(
                f"there are two prompts: {settings.where('prompt')} and {positional!r}",
                "give one, in quotes if it has spaces",
            )
        prompt = positional
    paths = settings.get("image", [])
    images = _images(paths, prompt)
    if STDIN not in paths:
        prompt = _with_stdin(prompt, out)
    if prompt is None and not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise usage(
            "there is no prompt, and no terminal to ask for one",
            "give -p TEXT, or pipe the prompt in",
        )
    if prompt is not None and not prompt.strip():
        raise usage("the prompt is empty", "give -p TEXT, or leave it out for a conversation")
    return Inputs(prompt, images)


def check_image(path: str) -> str:
    """`path` if it is a file: a wrong name is told before a model is loaded."""
    from ecokv_local.errors import ImageError

    if os.path.isdir(path):
        raise ImageError(f"{path}: is a folder, not a picture", hint="name one file")
    if not os.path.exists(path):
        raise ImageError(f"{path}: there is no such picture", hint="check the name and the folder")
    return path


def _images(paths: list[str], prompt: str | None) -> tuple[str | bytes, ...]:
    if paths.count(STDIN) > 1:
        raise usage("--image - can be given once", "give the other pictures as files")
    if STDIN in paths and prompt in (None, STDIN):
        raise usage(
            "--image - takes standard input, so the prompt cannot come from there", "add -p TEXT"
        )
    return tuple(_stdin_bytes() if path == STDIN else check_image(path) for path in paths)


def _with_stdin(prompt: str | None, out: Output) -> str | None:
    """The prompt with what is piped in put before it."""
    if prompt == STDIN:
        return _stdin_text()
    if is_terminal(sys.stdin) or sys.stdin is None:
        return prompt
    if prompt is None:
        return _stdin_text() or None
    if not _is_pipe_or_file():
        return prompt
    _wait(out)
    piped = _stdin_text()
    if not piped.strip():
        return prompt
    out.note(f"note: {len(piped):,} characters of standard input go before the prompt")
    return f"{piped}\n\n{prompt}"


def _is_pipe_or_file() -> bool:
    """A pipe or a file was put there by someone; other non-terminals are only inherited."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return True
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _wait(out: Output) -> None:
    """A pipe that nobody writes to or closes would look like a hang: say what is waited for."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], PATIENCE)
    except (OSError, ValueError):
        return
    if not ready:
        out.note("waiting for standard input to end (use </dev/null if there is none)")


def _stdin_bytes() -> bytes:
    if sys.stdin is None or is_terminal(sys.stdin):
        raise usage("--image - needs a picture on standard input", "for example: < picture.png")
    data = sys.stdin.buffer.read()
    if not data:
        raise usage("--image -: standard input is empty", "for example: < picture.png")
    return data


def _stdin_text() -> str:
    if sys.stdin is None:
        return ""
    buffer: Any = sys.stdin.buffer
    try:
        text: str = buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        raise usage(
            f"standard input is not UTF-8 text (byte {bad.start})", "a picture goes to --image -"
        ) from None
    return text.rstrip("\r\n")
