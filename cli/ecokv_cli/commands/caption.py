"""`ecokv caption`: captions for folders of pictures, resumable and each written once."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ecokv_cli import batch_output, engines
from ecokv_cli.batch_options import BATCH_INPUT, BATCH_OUTPUT, BATCH_PROMPT
from ecokv_cli.errors import INTERRUPTED, OK, SOME_FAILED, usage
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.options import (
    EVICTION,
    MODEL,
    OUTPUT,
    PROMPT,
    RUNTIME,
    SAMPLING,
)
from ecokv_cli.output import Output, is_terminal
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings

if TYPE_CHECKING:
    from ecokv_local import Engine
    from ecokv_local.caption import Batch, CaptionConfig, Gathered, Prompts, Source

_LEFT_OUT = ("image", "no_stream", "stats", "prefill")
_OWN: dict[str, dict[str, Any]] = {
    "prompt": {"help": "What to ask about each picture [Describe the image.]; may be a template."},
    "max_tokens": {"help": "Longest caption in tokens [512]; -1 is until the model ends it."},
    "json": {"help": "Events as JSON lines."},
}


NAME = "caption"
ARGUMENT = ("[PATH]...", "Pictures, folders of pictures, or patterns.")
GROUPS = chosen(
    (
        *MODEL,
        *BATCH_INPUT,
        *PROMPT,
        *BATCH_PROMPT,
        *BATCH_OUTPUT,
        *RUNTIME,
        *SAMPLING,
        *EVICTION,
        *OUTPUT,
    ),
    _OWN,
    _LEFT_OUT,
)
HELP = """Caption pictures: files, folders, patterns and lists.

Each caption is written whole, beside its picture or as a row of one file. Run it again after an
interruption and it goes on; what is done is not done twice. Ends with 3 if some pictures failed.
"""
EPILOG = (
    "Prompts, --prepend and --append are templates: {{ name }}, {{ stem }}, {{ folder }}, "
    "{{ width }}, {{ exif.Model }} and others stand for the picture's own data. "
    "Told in docs/usage.md."
)


def run(settings: Settings, out: Output, paths: list[str] | None) -> int:
    """Caption what there is to do; returns the exit code."""
    found = _pictures(settings, paths or [])
    config, prompts = _config(settings), _prompts(settings)
    batch = _batch(settings, out, found, config, prompts, paths or [])
    with batch:
        for warning in (*found.warnings, *batch.warnings, *engines.without_effect(settings)):
            out.warn(warning)
        if settings.get("dry_run", False):
            with Interrupts():
                return batch_output.dry_run(batch, out)
        if batch.plan.changes and config.changed == "ask":
            _ask(batch, out)
            batch.require_decision()
        return _run(batch, out)


def _run(batch: Batch, out: Output) -> int:
    show = batch_output.progress(batch, out)

    def stop() -> None:
        batch.stop()
        out.note("finishing the pictures in work; Ctrl-C again stops now")

    with Interrupts(stop) as interrupts, show:
        for result in batch.run():
            show.result(result)
    failed = show.end()
    if interrupts.pressed:
        return INTERRUPTED
    return SOME_FAILED if failed else OK


def _pictures(settings: Settings, paths: list[str]) -> Gathered:
    from ecokv_local.caption import gather

    filelist = settings.get("filelist")
    if not paths and filelist is None:
        raise usage("there is nothing to caption", "give files, folders, or --filelist FILE")
    return gather(
        paths,
        recursive=settings.get("recursive", False),
        patterns=settings.get("glob", []),
        listed=_listed(filelist) if filelist is not None else (),
        include_hidden=settings.get("include_hidden", False),
    )


def _listed(name: str) -> list[Source]:
    from ecokv_local.caption import read_list

    if name == "-":
        if sys.stdin is None or is_terminal(sys.stdin):
            raise usage("--filelist - needs a list on standard input", "find . -print0 | ...")
        return read_list(sys.stdin.buffer.read(), "-")
    return read_list(_bytes("--filelist", name), name)


def _bytes(flag: str, name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise usage(f"{flag} {name}: {error.strerror}", "check the path") from None


def _text(flag: str, name: str) -> str:
    try:
        return _bytes(flag, name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise usage(f"{flag} {name}: not UTF-8 (byte {error.start})", "save it as UTF-8") from None


def _prompts(settings: Settings) -> Prompts:
    from ecokv_local.caption import DEFAULT_PROMPT, Prompts, parse_prompts

    text, name = settings.get("prompt"), settings.get("prompt_file")
    if text is not None and name is not None:
        raise usage(
            f"there are two prompts: {settings.where('prompt')} and "
            f"{settings.where('prompt_file')}",
            "give one of them",
        )
    if name is not None:
        content = _text("--prompt-file", name)
        return parse_prompts(content, name, seed=settings.get("prompt_seed"))
    if text is not None and not text.strip():
        raise usage("the prompt is empty", "give -p TEXT, or leave it out")
    return Prompts((text or DEFAULT_PROMPT,))


def _grammar(settings: Settings) -> str | None:
    schema, grammar = settings.get("schema"), settings.get("grammar")
    if schema is not None and grammar is not None:
        raise usage("--schema and --grammar-file exclude each other", "give one of them")
    if schema is not None:
        from ecokv_local.caption.schema import grammar_of_schema

        return grammar_of_schema(_text("--schema", schema), schema)
    return None if grammar is None else _text("--grammar-file", grammar)


def _config(settings: Settings) -> CaptionConfig:
    from ecokv_local.caption import CaptionConfig

    given = settings.given(
        prepend="prepend",
        append="append",
        system="system",
        extension="extension",
        existing="existing",
        sidecar="sidecar",
        sidecar_name="sidecar_name",
        outputs="output",
        manifest="manifest",
        retry_failed="retry_failed",
        changed="changed",
        max_pixels="max_pixels",
        allow_truncated="allow_truncated",
        frame="frame",
        parallel="parallel",
    )
    if settings.get("max_tokens") is not None:
        given["max_tokens"] = engines.max_tokens(settings)
    return CaptionConfig(
        **given,
        grammar=_grammar(settings),
        n_ctx=settings.get("ctx_size") or None,
        eviction=engines.eviction_of(settings),
        sampling=engines.sampling_of(settings),
    )


def _batch(
    settings: Settings,
    out: Output,
    found: Gathered,
    config: CaptionConfig,
    prompts: Prompts,
    paths: list[str],
) -> Batch:
    from ecokv_local.caption import Batch

    def engine() -> Engine:
        out.status(f"loading {settings.get('model') or 'the model'}")
        try:
            return engines.open_engine(settings, out.status)
        finally:
            out.still()

    scope = [*map(os.path.abspath, paths), str(settings.get("filelist")), *settings.get("glob", [])]
    return Batch(
        found.sources,
        config,
        prompts,
        engine=engine,
        model=engines.model_values_of(settings),
        scope=[*scope, str(settings.get("recursive", False))],
        dry=settings.get("dry_run", False),
    )


def _ask(batch: Batch, out: Output) -> None:
    """Keep or redo what was made otherwise, if there is somebody to ask."""
    if out.as_json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return
    out.show("captions are there that were made otherwise:")
    for what, n in batch.plan.changes.items():
        out.show(f"  {what} ({n} files)")
    while True:
        sys.stderr.write("keep them, redo them, or stop? [k/r/s] ")
        sys.stderr.flush()
        answer = sys.stdin.readline().strip().lower()
        if answer in ("k", "keep"):
            batch.plan.changes.clear()
            return
        if answer in ("r", "redo"):
            batch.plan.redo_changed()
            return
        if answer in ("", "s", "stop"):
            return
