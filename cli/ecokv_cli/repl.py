"""The conversation: reads lines, runs commands, plays turns. A failed turn never ends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ecokv_cli import engines
from ecokv_cli.errors import INTERRUPTED, OK, describe, print_traceback_if_asked
from ecokv_cli.output import Output
from ecokv_cli.prompt import Prompt
from ecokv_cli.repl_commands import Leave, complete, find, pictures
from ecokv_cli.settings import Settings
from ecokv_cli.turn import play

if TYPE_CHECKING:
    from ecokv_local import Engine, Session

FENCE = '"""'


class Repl:
    """One conversation in a terminal."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        settings: Settings,
        out: Output,
        reader: Any = None,
    ) -> None:
        self.engine = engine
        self.session = session
        self.out = out
        self.max_tokens = engines.max_tokens(settings)
        self.eviction = engines.eviction_of(settings)
        self.sampling = engines.sampling_of(settings)
        self.system: str | None = settings.get("system")
        self.show_stats: bool = settings.get("stats", False)
        self.images: list[str | bytes] = []
        self.text = ""
        if settings.get("session") is not None:
            self.adopt(session)
        self._reader = reader if reader is not None else Prompt(complete)
        self._interrupted = False

    def run(self, images: tuple[str | bytes, ...] = ()) -> int:
        """Talk until the user leaves; returns the exit code."""
        self.images = list(images)
        self.out.note("Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands.")
        if images:
            self.tell_pending()
        while True:
            try:
                line = self._read()
            except EOFError:
                return OK
            except KeyboardInterrupt:
                if self._interrupted:
                    return INTERRUPTED
                self._interrupted = True
                self.out.note("Ctrl-C again, or Ctrl-D, leaves.")
                continue
            if not line.strip():
                continue
            self._interrupted = False
            try:
                self._do(line)
            except Leave:
                return OK
            except BrokenPipeError:
                raise
            except KeyboardInterrupt:  # between two turns, when nobody else listens
                self._interrupted = True
            except Exception as error:
                self.out.still()
                self.out.error(describe(error)[1])
                print_traceback_if_asked(error)

    def _read(self) -> str:
        """A line, or several between triple quotes."""
        line: str = self._reader.read("> ")
        start = line.lstrip()
        if not start.startswith(FENCE):
            return line
        lines = [start[len(FENCE) :]]
        while not lines[-1].rstrip().endswith(FENCE):
            lines.append(self._reader.read("... "))
        lines[-1] = lines[-1].rstrip()[: -len(FENCE)]
        text = "\n".join(lines).strip("\n")
        return f" {text}" if text.startswith("/") else text

    def _do(self, line: str) -> None:
        if line.startswith("/"):
            name, _, argument = line.strip().partition(" ")
            find(name).run(self, argument.strip())
            return
        text = line.strip()
        images, file = self.images, self.text
        self.images, self.text = [], ""
        if file:
            text = f"{file}\n\n{text}"
        try:
            self.play(self.session.ask(text, images, max_tokens=self.max_tokens))
        except Exception:
            if images:
                self.out.note(f"{pictures(len(images))} dropped; /image adds again.")
            if file:
                self.out.note(f"{len(file):,} characters dropped; /read adds again.")
            raise

    def play(self, events: Iterator[Any]) -> None:
        record = play(self.out, self.session, events, show_stats=self.show_stats)
        self._interrupted = record["finish_reason"] == "cancelled"

    def adopt(self, session: Session) -> None:
        """Go on with a loaded session, and with the settings it has."""
        self.session = session
        self.eviction, self.system = session.eviction, session.system
        self.images, self.text = [], ""

    def tell_pending(self) -> None:
        what = pictures(len(self.images))
        self.out.note(f"{what} will go with the next message.")
