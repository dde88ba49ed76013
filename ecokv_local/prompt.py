"""A conversation as the text that the model was trained on: its own chat template, rendered.

The template comes out of the model file, so it runs in Jinja's sandbox. Every image becomes one
media marker; after rendering the markers are counted, and a template that lost one is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ecokv_local.errors import TemplateError
from ecokv_local.messages import Message

#: What stands for an image in a prompt: mtmd_default_marker() of the pin.
MEDIA_MARKER = "<__media__>"

#: What a model without a template of its own gets.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

#: What templates print for an image by themselves. The begin and end tokens around it are left
#: out together with it: libmtmd puts the model's own there.
_OWN_TOKENS = re.compile(
    "|".join(
        (
            r"<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>",
            r"<\|vision_bos\|>(?:<\|IMAGE\|>)+<\|vision_eos\|>",
            r"<\|media_start\|>image<\|media_content\|>(?:<\|media_pad\|>)+<\|media_end\|>",
            r"<\|begin_of_image\|><\|image\|><\|end_of_image\|>",
            r"<start_of_image>(?:(?:<image_soft_token>)*<end_of_image>)?",
            r"\[IMG\](?:\[IMG_END\])?",
            r"<\|image_\d+\|>",
            r"<\|image(?:_pad|_token)?\|>",
            r"<(?:image|img|IMG_CONTEXT|image_soft_token|image_placeholder)>",
            r"\(<image>\./</image>\)",
        )
    )
)
_PYTHON_LIST = re.compile(r"\[\{['\"]type['\"]:")
_ZERO_WIDTH_SPACE = "\u200b"


@dataclass(frozen=True)
class RenderedPrompt:
    """Text with ``n_markers`` media markers in it, in the order of the images."""

    text: str
    n_markers: int
    warnings: tuple[str, ...] = ()


def neutralise(text: str) -> str:
    """Text in which the media marker cannot be mistaken for an image.

    A zero-width space goes behind its first letter: it reads the same, and is not a marker.
    """
    return text.replace(MEDIA_MARKER, MEDIA_MARKER[0] + _ZERO_WIDTH_SPACE + MEDIA_MARKER[1:])


class ChatTemplate:
    """The chat template of a model.

    Args:
        source: Jinja source out of the model file, None if it has none: ChatML is used then, and
            every rendering carries a warning.
        name: what messages call the model.
        bos_token: text of the token that begins a text, "" if there is none.
        eos_token: text of the token that ends one.

    Raises:
        TemplateError: the source is not a Jinja template.
    """

    def __init__(
        self, source: str | None, *, name: str, bos_token: str = "", eos_token: str = ""
    ) -> None:
        self.name = name
        self._globals = {"bos_token": bos_token, "eos_token": eos_token}
        self._warnings: tuple[str, ...] = ()
        if source is None:
            source = CHATML
            self._warnings = (f"{name}: has no chat template, ChatML is used",)
        try:
            self._template = _environment().from_string(source)
        except (JinjaError, RecursionError) as error:
            raise TemplateError(
                f"{name}: its chat template cannot be read: {error}", hint=_HINT
            ) from error

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> RenderedPrompt:
        """Render a conversation.

        The images of a message come before its text, each marker on a line of its own. Content is
        given to the template as a string first, then as a list of typed parts, with the image
        tokens that it prints replaced by markers. A media marker in a text is made harmless.

        Raises:
            TemplateError: no way gives one marker for each image and the text of every user.
        """
        safe = [Message(m.role, neutralise(m.text), m.images) for m in messages]
        try:
            return self._attempts(safe, add_generation_prompt, self._warnings)
        except TemplateError:
            merged = _system_into_user(safe)
            if merged is None:
                raise
            warning = f"{self.name}: takes no system prompt, it was put before the first question"
            return self._attempts(merged, add_generation_prompt, (*self._warnings, warning))

    def _attempts(
        self, messages: Sequence[Message], generate: bool, warnings: tuple[str, ...]
    ) -> RenderedPrompt:
        reasons = []
        for attempt in (self._as_strings, self._as_parts, self._as_text_parts):
            try:
                text = attempt(messages, generate)
                self._check(text, messages)
            except _Unfit as error:
                reasons.append(str(error))
                continue
            lost = [m for m in messages if m.role == "system" and m.text.strip() not in text]
            if lost:
                warnings = (*warnings, f"{self.name}: its chat template drops the system prompt")
            return RenderedPrompt(text, text.count(MEDIA_MARKER), warnings)
        reason = "; ".join(dict.fromkeys(reasons))
        raise TemplateError(
            f"{self.name}: its chat template cannot render this conversation: {reason}", hint=_HINT
        )

    @staticmethod
    def _check(text: str, messages: Sequence[Message]) -> None:
        need, have = sum(len(m.images) for m in messages), text.count(MEDIA_MARKER)
        if have != need:
            raise _Unfit(f"{have} media markers for {need} images")
        for message in messages:
            if message.role == "user" and message.text.strip() not in text:
                raise _Unfit("the text of the user is missing")
        printed = sum(len(_PYTHON_LIST.findall(m.text)) for m in messages)
        if len(_PYTHON_LIST.findall(text)) > printed:
            raise _Unfit("it prints the list of parts itself")

    def _run(self, contents: list[tuple[str, Any]], generate: bool) -> str:
        messages = [{"role": role, "content": content} for role, content in contents]
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=generate, tools=None, **self._globals
            )
        except Exception as error:  # templates raise anything
            raise _Unfit(" ".join(str(error).split())[:300] or type(error).__name__) from error

    def _as_strings(self, messages: Sequence[Message], generate: bool) -> str:
        return self._run([(m.role, _markers(m) + m.text) for m in messages], generate)

    def _as_text_parts(self, messages: Sequence[Message], generate: bool) -> str:
        parts = [(m.role, [{"type": "text", "text": _markers(m) + m.text}]) for m in messages]
        return self._run(parts, generate)

    def _as_parts(self, messages: Sequence[Message], generate: bool) -> str:
        """Texts are held out while image tokens are replaced: they may contain such tokens."""
        contents: list[tuple[str, Any]] = []
        for i, message in enumerate(messages):
            parts: list[dict[str, str]] = [{"type": "image"} for _ in message.images]
            if message.text:
                parts.append({"type": "text", "text": _held(i)})
            contents.append((message.role, parts))
        text = self._run(contents, generate)
        text = _OWN_TOKENS.sub(MEDIA_MARKER, text)
        text = _MARKER_BEFORE_MORE.sub(MEDIA_MARKER + "\n", text)
        texts = {_held(i): m.text for i, m in enumerate(messages)}
        return re.sub(f"{_HOLD}\\d+{_HOLD}", lambda found: texts.get(found[0], ""), text)


_HINT = "use another GGUF of this model, or one whose chat template supports images"
_HOLD = "\ue0f7"  # of the private use area
_MARKER_BEFORE_MORE = re.compile(f"{MEDIA_MARKER}(?={_HOLD}|{MEDIA_MARKER})")


class _Unfit(Exception):
    """One way to render did not work."""


def _held(index: int) -> str:
    return f"{_HOLD}{index}{_HOLD}"


def _markers(message: Message) -> str:
    return (MEDIA_MARKER + "\n") * len(message.images)


def _system_into_user(messages: Sequence[Message]) -> list[Message] | None:
    if len(messages) < 2 or (messages[0].role, messages[1].role) != ("system", "user"):
        return None
    system, user, *rest = messages
    return [Message("user", f"{system.text}\n\n{user.text}", user.images), *rest]


class _Generation(Extension):
    """``{% generation %}`` marks what a training loss covers; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    environment.filters["tojson"] = _to_json
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    environment.globals.update(functions)
    return environment


def _to_json(value: Any, indent: int | None = None, **more: Any) -> str:
    """As the templates expect it: letters of any script and ``<`` stay as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **more)


def _raise(message: str) -> None:
    raise JinjaError(message)
