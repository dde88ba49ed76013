"""Captions for many pictures: resumable, each written whole and once. ``docs/usage.md`` tells how.

from ecokv_local.caption import caption

for result in caption(["photos"], prompt="What is this?", recursive=True):
    print(result.path, result.caption if result.ok else result.error)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from ecokv_local.caption.batch import Batch
from ecokv_local.caption.config import DEFAULT_PROMPT, CaptionConfig, model_values
from ecokv_local.caption.inputs import Gathered, Source, gather, read_list
from ecokv_local.caption.prompts import Prompts, parse_prompts
from ecokv_local.caption.results import ChangedError, Result

if TYPE_CHECKING:
    from ecokv_local.engine import Engine

__all__ = [
    "DEFAULT_PROMPT",
    "Batch",
    "CaptionConfig",
    "ChangedError",
    "Gathered",
    "Prompts",
    "Result",
    "Source",
    "caption",
    "gather",
    "parse_prompts",
    "read_list",
]


def caption(
    paths: Iterable[str | PathLike[str]] = (),
    *,
    engine: Engine | None = None,
    prompt: str | Prompts = DEFAULT_PROMPT,
    recursive: bool = False,
    patterns: Sequence[str] = (),
    listed: Iterable[Source] = (),
    include_hidden: bool = False,
    **options: Any,
) -> Iterator[Result]:
    """Caption files and folders of pictures; a result for each that was not captioned before.

    The guarantees are those of ``ecokv caption``: captions are on the disk before their result is
    given, a run that was killed is continued by the next, and a picture that fails is a result with
    an ``error``. Without ``engine`` the built-in model is used, loaded only if there is something
    to do. ``options`` are the fields of ``CaptionConfig``.

    Raises UsageError for what cannot work, before anything is captioned, and ChangedError where
    captions were made with other settings.
    """
    given = [fspath(path) for path in paths]
    found = gather(
        given,
        recursive=recursive,
        patterns=patterns,
        listed=listed,
        include_hidden=include_hidden,
    )
    config = CaptionConfig(**options)
    prompts = Prompts((prompt,)) if isinstance(prompt, str) else prompt
    return _results(found, config, prompts, engine, [*given, *patterns, str(recursive)])


def _results(
    found: Gathered,
    config: CaptionConfig,
    prompts: Prompts,
    engine: Engine | None,
    scope: Sequence[str],
) -> Iterator[Result]:
    source: Any = engine if engine is not None else _built_in
    model = model_of(engine)
    with Batch(found.sources, config, prompts, engine=source, model=model, scope=scope) as batch:
        yield from batch.run()


def _built_in() -> Engine:
    from ecokv_local.engine import Engine

    return Engine()


def model_of(engine: Engine | None) -> dict[str, Any]:
    """What the manifest calls the model of ``engine``, or the built-in one."""
    if engine is None:
        from ecokv_local.models import built_in

        files = built_in()
        return model_values(files.model, files.mmproj, files.lora)
    return model_values(engine.model_path, engine.mmproj_path, engine.lora_paths)
