"""What goes where: the answer to stdout, everything else to stderr.

Nothing is ever parsed as markup: text of models and users, and names of files, are printed as they
are. On a terminal, control characters are made visible first, so that no text can move the cursor.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
del _VISIBLE[ord("\n")], _VISIBLE[ord("\t")]

_PART = 4096
#: Seconds between lines of progress in a log.
INTERVAL = 10.0
RED, YELLOW, DIM = "31", "33", "2"


class Output:
    """The streams of one run, and the choices of the user about them."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        stream: bool = True,
        quiet: bool = False,
        verbose: bool = False,
    ) -> None:
        self.as_json = as_json
        self.stream = stream
        self.quiet = quiet
        self.verbose = verbose
        self._column = 0
        self._spinner: Any = None
        self._said: set[str] = set()
        self._told = time.monotonic()
        for file in (sys.stdout, sys.stderr):
            _never_fail_on_characters(file)

    # the answer

    def answer(self, piece: str) -> None:
        """A piece of the answer, while it is made."""
        if self.as_json or not self.stream or not piece:
            return
        self.still()
        self._write_answer(piece)

    def answer_ends(self, text: str) -> None:
        """The answer is complete: end the line, or print all of it now."""
        self.still()
        if self.as_json:
            return
        if not self.stream:
            self._write_answer(text)
        if self._column:
            self._write_answer("\n")

    def record(self, data: Mapping[str, Any]) -> None:
        """One JSON object on a line of its own."""
        self.still()
        import json

        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        _write(json.dumps(data, ensure_ascii=ascii_only) + "\n")

    def _write_answer(self, text: str) -> None:
        _write(visible(text) if is_terminal(sys.stdout) else text)
        if text:
            self._column = 0 if text.endswith("\n") else 1

    # everything else

    def error(self, error: Mapping[str, Any]) -> None:
        """An error, for a person on stderr or as an object on stdout."""
        self._end_line()
        if self.as_json:
            self.record({"error": dict(error)})
            return
        self.still()
        self._say(f"{style('error:', RED, sys.stderr)} {_one_line(error['message'])}")
        if error.get("hint"):
            self._say(f" {style('hint:', DIM, sys.stderr)} {_one_line(error['hint'])}")

    def warn(self, text: str) -> None:
        """A warning, once a run. Warnings are not silenced by --quiet."""
        if text not in self._said:
            self._said.add(text)
            self.still()
            self._end_line()
            self._say(f"{style('warning:', YELLOW, sys.stderr)} {_one_line(text)}")

    def note(self, text: str) -> None:
        """Something worth knowing, unless the user wants quiet."""
        if not self.quiet:
            self.still()
            self._end_line()
            self._say(visible(text))

    def show(self, text: str) -> None:
        """Something that the user asked for, other than the answer."""
        self.still()
        self._end_line()
        self._say(visible(text))

    def status(self, text: str) -> None:
        """What is being done now: a spinner on a terminal, a line with --verbose, else nothing."""
        if self.quiet:
            return
        if self.verbose:
            self._say(visible(text))
        elif is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb":
            self._spin(visible(text))

    def progress(self, text: str) -> None:
        """As ``status``, for long work: in a log there is a line of it now and then."""
        self.status(text)
        logged = not (self.quiet or self.verbose or is_terminal(sys.stderr))
        if logged and time.monotonic() - self._told >= INTERVAL:
            self._told = time.monotonic()
            self._say(visible(text))

    def still(self) -> None:
        """Take the spinner away."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def _spin(self, text: str) -> None:
        from rich.console import Console
        from rich.text import Text

        line = Text(text, no_wrap=True, overflow="ellipsis")
        if self._spinner is None:
            console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            self._spinner = console.status(line)
            self._spinner.start()
        else:
            self._spinner.update(line)

    def _end_line(self) -> None:
        """Do not write behind half a line of the answer when both streams are one terminal."""
        if self._column and is_terminal(sys.stdout) and is_terminal(sys.stderr):
            _write("\n")
            self._column = 0

    def _say(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _write(text: str) -> None:
    """To stdout, now. In parts: an unbuffered Python (-u) drops what one write leaves over."""
    for start in range(0, len(text), _PART):
        sys.stdout.write(text[start : start + _PART])
    sys.stdout.flush()


def visible(text: str) -> str:
    """Control characters as `\\x1b`; line ends and tabs stay."""
    return text.translate(_VISIBLE)


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def style(text: str, code: str, stream: TextIO) -> str:
    """`text` in a colour, if `stream` is a terminal whose user wants colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal(stream):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def _one_line(text: Any) -> str:
    """Messages of the library may have several lines; keep them readable and tame."""
    return visible(str(text)).rstrip().replace("\n", "\n       ")


def _never_fail_on_characters(stream: Any) -> None:
    """A character that the terminal's encoding lacks is written as an escape, not a crash."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
