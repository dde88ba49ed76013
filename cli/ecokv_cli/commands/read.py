"""`ecokv read`: pictures and texts are read once, for questions later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecokv_cli import engines, stats
from ecokv_cli.errors import INTERRUPTED, OK, usage
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.options import BY_NAME, EVICTION, MODEL, OUTPUT, PROMPT, RUNTIME
from ecokv_cli.output import Output
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings

_LEFT_OUT = ("image", "max_tokens", "no_stream", "stats")
_OWN: dict[str, dict[str, Any]] = {
    "prompt": {"help": "What the questions will be about: what it looks at is kept."},
    "json": {"help": "One JSON object."},
}
_OUTPUT = replace(
    BY_NAME["output"], help="Where the session is written.", group="Output", many=False
)


NAME = "read"
GROUPS = (*chosen((*MODEL, *PROMPT, *RUNTIME, *EVICTION, *OUTPUT), _OWN, _LEFT_OUT), _OUTPUT)
ARGUMENT = ("DOC...", "Pictures and UTF-8 text files.")
HELP = """Read pictures and texts once, and ask about them for ever.

The documents are read down to the budget and written to a file with -o. `ecokv chat --session FILE`
goes on from there as often as you like: they are not read again, and the file is not changed.
"""
EPILOG = "Pictures come before the texts, each in the order given. See docs/sessions.md."


def run(settings: Settings, out: Output, documents: list[str] | None) -> int:
    """Read documents and write the session; returns the exit code."""
    from ecokv_local.documents import split_documents

    target = settings.get("output")
    if not documents:
        raise usage("there is nothing to read", "for example: ecokv read notes.txt -o notes.ekv")
    if target is None:
        raise usage("-o is missing: where is the session to be written?", "add -o FILE.ekv")
    text, images = split_documents(documents)
    prompt = settings.get("prompt")
    if prompt:
        text = f"{text}\n\n{prompt}" if text else prompt
    eviction = engines.eviction_of(settings)
    out.status("loading the model")
    with Interrupts(), engines.open_engine(settings, out.status) as engine:
        session = engines.open_session(engine, settings, eviction, engines.sampling_of(settings))
        with Interrupts(session.stop) as interrupts:
            answer = None
            for event in session.read(text, images):
                out.status(event.text)
                answer = event.answer or answer
        if interrupts.pressed or answer is None:
            return INTERRUPTED
        size = session.save(target)
    out.still()
    for warning in (*engines.without_effect(settings), *answer.warnings):
        out.warn(warning)
    record = {
        "file": target,
        "file_bytes": size,
        "n_prompt": answer.n_prompt,
        "n_image_tokens": answer.n_image_tokens,
        "n_kept": answer.n_kept,
        "kv_bytes": answer.kv_bytes,
        "t_prefill_ms": answer.t_encode_ms + answer.t_prefill_ms,
        "warnings": list(answer.warnings),
    }
    if out.as_json:
        out.record(record)
    elif not out.quiet:
        shown = {name: record[name] for name in ("n_prompt", "n_image_tokens", "n_kept")}
        out.show(stats.table(shown | {"file": f"{target}, {size:,} bytes"}))
    return OK
