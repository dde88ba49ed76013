"""What a setting is: a flag, an environment variable and a key of `ecokv.toml` at the same time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ecokv_cli import values
from ecokv_cli.values import Parser


@dataclass(frozen=True)
class Setting:
    """One thing a user can set. `flags` are in the order shown; `off` turns a switch off."""

    name: str
    flags: tuple[str, ...]
    metavar: str
    help: str
    parse: Parser
    group: str = ""
    many: bool = False
    off: str = ""
    is_path: bool = False

    @property
    def is_switch(self) -> bool:
        return bool(self.off)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names in `ecokv.toml`: the long flags without their dashes."""
        return tuple(flag[2:] for flag in self.flags if flag.startswith("--"))

    @property
    def environment(self) -> tuple[str, ...]:
        return tuple("ECOKV_" + key.upper().replace("-", "_") for key in self.keys)

    @property
    def label(self) -> str:
        """How messages name the flag: the first long spelling."""
        return f"--{self.keys[0]}"


def switch(name: str, flags: tuple[str, ...], off: str, help: str) -> Setting:
    """A setting that is on or off; ``off`` is the flag that turns it off."""
    return Setting(name, flags, "", help, values.switch, off=off)


def chosen(
    settings: Iterable[Setting],
    own: Mapping[str, Mapping[str, Any]],
    without: Collection[str] = (),
) -> tuple[Setting, ...]:
    """Those that a command has, worded in its own way: ``own`` are fields to change, by name."""
    return tuple(replace(s, **own.get(s.name, {})) for s in settings if s.name not in without)


def group(title: str, *settings: Setting) -> tuple[Setting, ...]:
    """Settings under a common title of the help."""
    return tuple(replace(setting, group=title) for setting in settings)
