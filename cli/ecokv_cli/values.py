"""Parsers of setting values: one text in, one value out, or `BadValue`.

The same parser serves a flag, an environment variable and a key of `ecokv.toml`, so that a wrong
value is refused in the same words wherever it was written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

Parser = Callable[[str], Any]

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off")


class BadValue(ValueError):
    """A value that cannot be used: what is wrong with it, and what to try."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


def text(value: str) -> str:
    """Any text, the empty one included."""
    return value


def path(value: str) -> str:
    """A file name; refuses the empty one and anything that looks like a URL."""
    if not value.strip():
        raise BadValue("is empty", "give the path of a file")
    scheme, mark, _ = value.partition("://")
    if mark and len(scheme) > 1 and scheme.isalnum():
        raise BadValue(f"{value!r} is a URL, not a file", "download it first and give its path")
    return os.path.expanduser(value) if value.startswith("~") else value


def repo(value: str) -> str:
    """A Hugging Face repository, `user/name` or `user/name:quant`."""
    name, _, quant = value.partition(":")
    user, slash, rest = name.partition("/")
    if not (user and slash and rest) or "/" in rest or (":" in value and not quant):
        raise BadValue(
            f"{value!r} is not user/repo or user/repo:quant",
            "for example ggml-org/SmolVLM-500M-Instruct-GGUF:Q8_0",
        )
    return value


def integer(low: int, high: int | None = None, *, also: tuple[int, ...] = (), like: str) -> Parser:
    """A whole number in [low, high], or one of `also`."""

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise BadValue(f"{value!r} is not a whole number", f"for example {like}") from None
        if number not in also and (number < low or (high is not None and number > high)):
            limits = f"from {low} up" if high is None else f"from {low} to {high}"
            extra = f" (or {', '.join(str(n) for n in also)})" if also else ""
            raise BadValue(f"{value} is out of range", f"use a number {limits}{extra}")
        return number

    return parse


def number(low: float, high: float | None = None, *, like: str) -> Parser:
    """A finite number in [low, high]."""

    def parse(value: str) -> float:
        try:
            result = float(value)
        except ValueError:
            raise BadValue(f"{value!r} is not a number", f"for example {like}") from None
        if not math.isfinite(result) or result < low or (high is not None and result > high):
            limits = f"from {low:g} up" if high is None else f"from {low:g} to {high:g}"
            raise BadValue(f"{value} is out of range", f"use a number {limits}")
        return result

    return parse


def choice(*options: str) -> Parser:
    """One of a few words."""

    def parse(value: str) -> str:
        if value not in options:
            raise BadValue(f"{value!r} is not one of {', '.join(options)}", f"use {options[0]}")
        return value

    return parse


def switch(value: str) -> bool:
    """On or off, as environment variables spell it."""
    word = value.strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise BadValue(f"{value!r} is neither on nor off", "use 1 or 0")


def gpu_layers(value: str) -> int | str:
    """A number of layers, `auto` or `all`."""
    if value in ("auto", "all"):
        return value
    try:
        layers = int(value)
    except ValueError:
        raise BadValue(f"{value!r} is not a number, auto or all", "use auto") from None
    if layers < 0:
        raise BadValue(f"{value} is negative", "use all for every layer, 0 for none")
    return layers


def parallel(value: str) -> int | str:
    """A number of sequences, or `auto`."""
    return value if value == "auto" else int(integer(1, 1024, like="auto")(value))


def prefill(value: str) -> str:
    """How the prompt is read."""
    return str(choice("auto", "whole", "chunked")(value))


def budget(value: str) -> Any:
    """KV pairs, percent of the prompt, or bytes; the library knows the spelling."""
    from ecokv_local import Budget

    return Budget.parse(value)


def image_budget(value: str) -> Any:
    """KV pairs, or percent of the tokens of an image."""
    from ecokv_local.groups import parse_image_budget

    return parse_image_budget(value)


def protect(value: str) -> Any:
    """Names of texts, separated by commas."""
    from ecokv_local.groups import parse_protect

    return parse_protect(value)


def policy(value: str) -> str:
    """The name of an eviction policy of the library."""
    from ecokv_local.config import POLICIES

    if value not in POLICIES:
        from difflib import get_close_matches

        near = get_close_matches(value, POLICIES, 1)
        names = ", ".join(POLICIES)
        raise BadValue(
            f"there is no policy {value!r}",
            f"did you mean {near[0]}? policies: {names}" if near else f"policies: {names}",
        )
    return value
