"""The commands of the conversation: one function each, and the table that names them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecokv_cli import inputs, paths, stats, values
from ecokv_cli.errors import usage
from ecokv_cli.prompt import Completion

if TYPE_CHECKING:
    from ecokv_cli.repl import Repl


class Leave(Exception):
    """A command asked to end the conversation."""


def pictures(count: int) -> str:
    return "1 picture" if count == 1 else f"{count} pictures"


def _image(repl: Repl, argument: str) -> None:
    names = paths.split(argument)
    if not names:
        raise usage("/image needs a file", "for example: /image ~/pictures/cat.png")
    if not repl.engine.has_vision:
        raise usage(
            "/image: this model cannot see: it was loaded without a projector",
            "start again with --mmproj FILE",
        )
    repl.images += [inputs.check_image(name) for name in names]
    repl.tell_pending()


def _read(repl: Repl, argument: str) -> None:
    names = paths.split(argument)
    if len(names) != 1:
        raise usage("/read needs one file", "for example: /read notes.txt")
    try:
        text = Path(names[0]).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise usage(f"/read: {names[0]} is not UTF-8 text", "pictures go to /image") from None
    repl.text = f"{repl.text}\n\n{text}" if repl.text else text
    repl.out.note(f"{len(text):,} characters will go with the next message.")


def _clear(repl: Repl, argument: str) -> None:
    _no_argument("/clear", argument)
    repl.session.clear()
    repl.images, repl.text = [], ""
    repl.out.note("The conversation starts again.")


def _regen(repl: Repl, argument: str) -> None:
    _no_argument("/regen", argument)
    repl.play(repl.session.regenerate(max_tokens=repl.max_tokens))


def _set(repl: Repl, argument: str) -> None:
    name, _, value = argument.partition(" ")
    value = value.strip()
    if not argument:
        repl.out.show(stats.table(_settable(repl)))
        return
    if name not in SETTABLE:
        raise usage(f"/set: there is no setting {name!r}", f"settings: {', '.join(SETTABLE)}")
    if not value and name != "system":
        raise usage(f"/set {name} needs a value", f"now: {_settable(repl)[name]}")
    try:
        SETTABLE[name](repl, value)
    except values.BadValue as bad:
        raise usage(f"/set {name}: {bad.problem}", bad.hint) from None
    repl.out.note(f"{name} is {_settable(repl)[name]}")


def _set_budget(repl: Repl, value: str) -> None:
    _evict_by(repl, budget=None if value in ("none", "off", "full") else values.budget(value))


def _set_policy(repl: Repl, value: str) -> None:
    _evict_by(repl, policy=values.policy(value))


def _set_image_budget(repl: Repl, value: str) -> None:
    _evict_by(repl, image_budget=None if value in ("none", "off") else values.image_budget(value))


def _set_protect(repl: Repl, value: str) -> None:
    _evict_by(repl, protect=values.protect(value))


def _evict_by(repl: Repl, **settings: Any) -> None:
    """Change what stays in the cache; nothing has changed where that cannot work."""
    eviction = replace(repl.eviction, **settings)
    repl.session.configure(eviction=eviction)
    repl.eviction = eviction


def _set_temp(repl: Repl, value: str) -> None:
    changed = replace(repl.sampling, temp=values.number(0, like="0.7")(value))
    repl.session.configure(sampling=changed)
    repl.sampling = changed


def _set_system(repl: Repl, value: str) -> None:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    repl.session.configure(system=value)
    repl.system = value or None


SETTABLE: dict[str, Callable[[Repl, str], None]] = {
    "budget": _set_budget,
    "policy": _set_policy,
    "image-budget": _set_image_budget,
    "protect": _set_protect,
    "temp": _set_temp,
    "system": _set_system,
}


def _settable(repl: Repl) -> dict[str, str]:
    return {
        "budget": str(repl.eviction.budget or "none"),
        "policy": repl.eviction.policy,
        "image-budget": str(repl.eviction.image_budget or "none"),
        "protect": ", ".join(repl.eviction.protect) or "none",
        "temp": f"{repl.sampling.temp:g}",
        "system": repl.system or "none",
    }


def _show(repl: Repl, argument: str) -> None:
    _no_argument("/show", argument)
    session = repl.session
    rows = {
        "model": str(repl.engine.model_path),
        "projector": str(repl.engine.mmproj_path or "none"),
        **_settable(repl),
        "messages": len(session.messages),
        "position": session.n_position,
        "KV pairs": f"{session.n_rows} per layer and head",
        "cells": session.n_cells,
        "waiting": f"{pictures(len(repl.images))}, {len(repl.text):,} characters",
    }
    repl.out.show(stats.table(rows))


def _stats(repl: Repl, argument: str) -> None:
    _no_argument("/stats", argument)
    repl.out.show(stats.table(repl.session.stats()))


def _save(repl: Repl, argument: str) -> None:
    name = _one_file("/save", argument)
    size = repl.session.save(name)
    repl.out.note(f"{name}: {size:,} bytes; goes on with /load or ecokv chat --session")


def _load(repl: Repl, argument: str) -> None:
    name = _one_file("/load", argument)
    loaded = repl.engine.load_session(name, sampling=repl.sampling)
    old = repl.session
    repl.adopt(loaded)
    old.close()
    repl.out.note(f"{name}: {loaded.n_rows} KV pairs, position {loaded.n_position}")


def _one_file(name: str, argument: str) -> str:
    names = paths.split(argument)
    if len(names) != 1:
        raise usage(f"{name} needs one file", f"for example: {name} talk.ekv")
    return names[0]


def _help(repl: Repl, argument: str) -> None:
    rows = {command.usage: command.help for command in COMMANDS}
    rows['"""'] = "begins and ends a message of several lines"
    repl.out.show(stats.table(rows))


def _exit(repl: Repl, argument: str) -> None:
    raise Leave


def _no_argument(name: str, argument: str) -> None:
    if argument:
        raise usage(f"{name} takes no argument, not {argument!r}", "/help lists the commands")


@dataclass(frozen=True)
class Command:
    """One command of the conversation."""

    names: tuple[str, ...]
    usage: str
    help: str
    run: Callable[[Repl, str], None]


COMMANDS = (
    Command(("/image",), "/image PATH", "look at a picture with the next message", _image),
    Command(("/read",), "/read FILE", "put a text file before the next message", _read),
    Command(("/save",), "/save FILE", "write the conversation and its cache to a file", _save),
    Command(("/load",), "/load FILE", "go on with a saved conversation", _load),
    Command(("/clear",), "/clear", "forget the conversation", _clear),
    Command(("/regen",), "/regen", "answer the last message again", _regen),
    Command(("/set",), "/set NAME VALUE", "change a setting; /set alone shows them", _set),
    Command(("/show",), "/show", "show the settings and the state of the cache", _show),
    Command(("/stats",), "/stats", "show what has been measured", _stats),
    Command(("/exit", "/quit", "/bye"), "/exit, /quit, /bye", "leave, as Ctrl-D does", _exit),
    Command(("/help", "/?"), "/help, /?", "show this", _help),
)
BY_NAME = {name: command for command in COMMANDS for name in command.names}


def find(name: str) -> Command:
    """The command called `name`, or `UsageError` with what may have been meant."""
    if name in BY_NAME:
        return BY_NAME[name]
    if os.path.exists(name):
        raise usage(f"unknown command {name}", f"to look at that file: /image {name}")
    from difflib import get_close_matches

    near = get_close_matches(name, BY_NAME, 1)
    guess = f"did you mean {near[0]}?" if near else "/help lists them."
    raise usage(
        f"unknown command {name}", f"{guess} A message that starts with / needs a space first."
    )


def complete(line: str) -> list[Completion]:
    """Completions at the end of `line`: commands, names of files, settings, policies."""
    name, space, rest = line.partition(" ")
    if not name.startswith("/"):
        return []
    if not space:
        return [(len(name), known, known) for known in BY_NAME if known.startswith(name)]
    if name in ("/image", "/read", "/save", "/load"):
        length = paths.fragment_length(rest)
        return [(length, found.text, found.display) for found in paths.complete(rest)]
    if name == "/set":
        key, second, value = rest.partition(" ")
        if not second:
            return _words(SETTABLE, key)
        if key == "policy":
            from ecokv_local.config import POLICIES

            return _words(POLICIES, value)
        if key == "protect":
            from ecokv_local.groups import PROTECT

            return _words((*PROTECT, "none"), value)
    return []


def _words(words: Any, start: str) -> list[Completion]:
    return [(len(start), word, word) for word in words if word.startswith(start)]
