"""`ecokv chat`: one question, or a conversation, with a model that may look at pictures."""

from __future__ import annotations

from typing import Any

from ecokv_cli import engines, inputs
from ecokv_cli.errors import INTERRUPTED, OK
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.options import EVICTION, MODEL, OUTPUT, PROMPT, RUNTIME, SAMPLING, SESSION
from ecokv_cli.output import Output
from ecokv_cli.settings import Settings

NAME = "chat"
GROUPS = (*MODEL, *PROMPT, *SESSION, *RUNTIME, *SAMPLING, *EVICTION, *OUTPUT)
HELP = """Ask a model about pictures or text, once or in a conversation.

With -p, a prompt argument or piped input, the answer goes to standard output and the program ends.
Otherwise, in a terminal, a conversation starts; /help lists its commands.
"""
EPILOG = (
    "Every flag is also a variable, ECOKV_ and its name (ECOKV_MAX_TOKENS), and a key of "
    "ecokv.toml in the project or in the user's configuration folder. Flag beats variable beats "
    "project beats user."
)


def run(settings: Settings, out: Output, prompt: str | None) -> int:
    """Answer once if there is a prompt, else talk; returns the exit code."""
    given = inputs.gather(settings, prompt, out)
    eviction, sampling = engines.eviction_of(settings), engines.sampling_of(settings)
    with Interrupts(), _Loading(out, settings):
        engine = engines.open_engine(settings, out.status)
    with engine:
        with Interrupts():
            session = engines.open_session(engine, settings, eviction, sampling)
        try:
            if given.prompt is None:
                from ecokv_cli.repl import Repl

                for warning in engines.without_effect(settings, session):
                    out.warn(warning)
                return Repl(engine, session, settings, out).run(given.images)
            return _once(session, settings, out, given.prompt, given.images)
        finally:
            session.close()


def _once(
    session: Any, settings: Settings, out: Output, prompt: str, images: tuple[str | bytes, ...]
) -> int:
    from ecokv_cli.turn import play

    record = play(
        out,
        session,
        session.ask(prompt, images, max_tokens=engines.max_tokens(settings)),
        warnings=engines.without_effect(settings, session),
        show_stats=settings.get("stats", False),
    )
    return INTERRUPTED if record["finish_reason"] == "cancelled" else OK


class _Loading:
    """Says that the model is being loaded, for as long as it is."""

    def __init__(self, out: Output, settings: Settings) -> None:
        self._out = out
        name = settings.get("model") or settings.get("hf_repo") or "the built-in model"
        self._text = f"loading {name}"

    def __enter__(self) -> None:
        self._out.status(self._text)

    def __exit__(self, *_: object) -> None:
        self._out.still()
