"""What is asked about each picture: one prompt or a weighted choice, with the picture's own data.

A text with ``{{`` or ``{%`` in it is a Jinja template, rendered in the sandbox. It knows ``name``,
``stem``, ``extension``, ``folder`` and ``path`` of the picture, ``bytes``, ``width``, ``height``
and ``exif`` (tags by their names).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ecokv_local.errors import UsageError

#: What a template can use.
VARIABLES = (
    "name",
    "stem",
    "extension",
    "folder",
    "path",
    "bytes",
    "width",
    "height",
    "exif",
)
_OF_THE_PICTURE = ("width", "height", "exif")
_LIKE = 'a list is: ["Describe it.", {"prompt": "Name it.", "weight": 2}]'


@dataclass(frozen=True)
class Prompts:
    """Prompts with their weights; ``seed`` decides which picture gets which, always the same."""

    texts: tuple[str, ...]
    weights: tuple[float, ...] = ()
    seed: int = 0

    def choose(self, key: str) -> str:
        """The prompt of the picture called ``key``: by its name, not by its place in the batch."""
        if len(self.texts) == 1:
            return self.texts[0]
        raw = hashlib.sha256(f"{self.seed}\0{key}".encode("utf-8", "surrogateescape")).digest()
        point = int.from_bytes(raw[:8], "big") / 2**64 * sum(self.weights)
        for text, weight in zip(self.texts, self.weights, strict=True):
            point -= weight
            if point < 0:
                return text
        return self.texts[-1]

    def values(self) -> Any:
        """For the manifest."""
        if len(self.texts) == 1:
            return self.texts[0]
        return {"prompts": list(self.texts), "weights": list(self.weights), "seed": self.seed}


def parse_prompts(text: str, name: str, *, seed: int | None = None) -> Prompts:
    """Prompts of a file: a JSON list, an object of ``prompts`` and ``seed``, or one plain text.

    Raises UsageError if it is empty, or looks like JSON and is not.
    """
    text = text.removeprefix("\ufeff").strip()
    if not text:
        raise UsageError(f"{name}: is empty", hint="write a prompt into it")
    # a template may begin with a brace too
    if not text.startswith(("[", "{")) or text.startswith(("{{", "{%", "{#")):
        return Prompts((text,))
    try:
        data = json.loads(text)
    except ValueError as error:
        if text.startswith("[") and not text.startswith(('["', "[{", "[\n")):
            return Prompts((text,))
        raise UsageError(f"{name}: not JSON ({error})", hint=_LIKE) from None
    entries = data.get("prompts") if isinstance(data, dict) else data
    if isinstance(data, dict) and seed is None:
        seed = _seed(data.get("seed", 0), name)
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{name}: there are no prompts in it", hint=_LIKE)
    pairs = [_entry(entry, f"{name}: prompt {i}") for i, entry in enumerate(entries, 1)]
    texts, weights = zip(*pairs, strict=True)
    if sum(weights) <= 0:
        raise UsageError(f"{name}: all weights are 0", hint=_LIKE)
    return Prompts(texts, weights, seed or 0)


def _entry(entry: Any, where: str) -> tuple[str, float]:
    text, weight = entry, 1.0
    if isinstance(entry, dict):
        text, weight = entry.get("prompt", entry.get("text")), entry.get("weight", 1)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{where} is not a text", hint=_LIKE)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < 1e9:
        raise UsageError(f"{where}: weight {weight!r} is not a number from 0 on", hint=_LIKE)
    return text, float(weight)


def _seed(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name}: seed {value!r} is not a whole number", hint='"seed": 1')
    return value


Renderer = Callable[[Mapping[str, Any]], str]


class Texts:
    """Templates of one batch, compiled once. ``needs_header``: one of them asks for what only the
    picture itself can tell.

    Raises UsageError for a template that cannot be read, or asks for what there is not.
    """

    def __init__(self, named: Sequence[tuple[str, str]]) -> None:
        """``named``: where each text was given, for messages, and the text."""
        self._renderers: dict[str, Renderer] = {}
        self.needs_header = False
        for where, text in named:
            if text not in self._renderers and is_template(text):
                self._renderers[text] = self._compile(where, text)

    def _compile(self, where: str, text: str) -> Renderer:
        from jinja2 import meta
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(autoescape=False, keep_trailing_newline=True)
        try:
            used = meta.find_undeclared_variables(environment.parse(text))
            template = environment.from_string(text)
        except (TemplateError, RecursionError) as error:
            raise UsageError(
                f"{where}: not a template ({error})", hint="{{ stem }} is the name without its end"
            ) from None
        unknown = sorted(used - set(VARIABLES) - set(environment.globals))
        if unknown:
            raise UsageError(
                f"{where}: there is no {unknown[0]!r} for a template",
                hint=f"known: {', '.join(VARIABLES)}",
            )
        self.needs_header |= any(name in used for name in _OF_THE_PICTURE)

        def render(variables: Mapping[str, Any]) -> str:
            try:
                return template.render(variables)
            except Exception as error:  # templates raise anything
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                raise UsageError(f"{where}: {variables['path']}: {reason}") from error

        return render

    def render(self, text: str, variables: Mapping[str, Any]) -> str:
        """``text`` for one picture. Raises UsageError where the template fails on it."""
        renderer = self._renderers.get(text)
        return text if renderer is None else renderer(variables)


def is_template(text: str) -> bool:
    """Whether a text is rendered; all others are taken as they are."""
    return "{{" in text or "{%" in text


def variables_of(path: str, n_bytes: int, header: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a template knows of a picture; ``header`` is ``images.probe_image``, where needed."""
    folder, name = os.path.split(os.path.abspath(path))
    stem, extension = os.path.splitext(name)
    return {
        "path": path,
        "name": name,
        "stem": stem,
        "extension": extension,
        "folder": os.path.basename(folder),
        "bytes": n_bytes,
        **(header or {"width": 0, "height": 0, "exif": {}}),
    }
