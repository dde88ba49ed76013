"""From flags, environment and `ecokv.toml` to one set of values.

Flag beats environment beats the project's file beats the user's file. A value is parsed where it
was found and refused in the name of that place: nothing wrong is ever skipped over.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecokv_cli.errors import usage
from ecokv_cli.options import BY_KEY, BY_NAME
from ecokv_cli.setting import Setting
from ecokv_cli.values import BadValue

FILE_NAME = "ecokv.toml"
#: Commands that may have a table of their own in it.
COMMANDS = (
    "chat",
    "read",
    "caption",
    "bench",
    "eval",
    "explain",
    "analyze",
    "validate",
    "estimate",
    "doctor",
)
#: `ECOKV_` variables that are not settings.
OTHER_VARIABLES = frozenset(
    {"ECOKV_HOME", "ECOKV_DEBUG", "ECOKV_LIB_DIR", "ECOKV_CACHE", "ECOKV_LLAMA_ARCHIVE"}
)

USER, PROJECT, ENVIRONMENT, FLAG = range(4)


@dataclass(frozen=True)
class Found:
    """A value, where it was written (for messages) and how strong that place is."""

    value: Any
    where: str
    rank: int


@dataclass
class Settings:
    """The values of one run, and where each came from."""

    found: dict[str, Found] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def get(self, name: str, default: Any = None) -> Any:
        entry = self.found.get(name)
        return default if entry is None else entry.value

    def rank(self, name: str) -> int:
        """Strength of the place that set `name`; -1 if nobody did."""
        entry = self.found.get(name)
        return -1 if entry is None else entry.rank

    def where(self, name: str) -> str:
        return self.found[name].where

    def given(self, **names: str) -> dict[str, Any]:
        """Keyword arguments for the library: only what the user set, under the library's names."""
        return {key: self.found[name].value for key, name in names.items() if name in self.found}


def resolve(
    command: str,
    settings: Iterable[Setting],
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Values of `settings` for one run of `command`; `UsageError` for anything wrong."""
    environ = os.environ if environ is None else environ
    settings = tuple(settings)
    result = Settings()
    for rank, file in ((USER, user_file(environ)), (PROJECT, project_file())):
        if file is not None and not _same(file, user_file(environ) if rank == PROJECT else None):
            result.found.update(_from_file(file, rank, command, settings))
    for setting in settings:
        entry = _from_environment(setting, environ)
        if entry is not None:
            result.found[setting.name] = entry
        raw = flags.get(setting.name)
        if raw is not None and raw not in ([], ()):
            result.found[setting.name] = Found(
                _parse(setting, raw, setting.label), setting.label, FLAG
            )
    _check_misspelt(environ, result)
    _one_model(result)
    _quiet_or_verbose(result)
    return result


def user_file(environ: Mapping[str, str]) -> Path | None:
    """`ecokv.toml` of the user: in `$ECOKV_HOME`, else in the XDG configuration folder."""
    home = environ.get("ECOKV_HOME")
    if home:
        folder = Path(home).expanduser()
    elif environ.get("XDG_CONFIG_HOME"):
        folder = Path(environ["XDG_CONFIG_HOME"]) / "ecokv"
    elif os.name == "nt" and environ.get("APPDATA"):
        folder = Path(environ["APPDATA"]) / "ecokv"
    else:
        folder = _home() / ".config" / "ecokv"
    file = folder / FILE_NAME
    return file if file.is_file() else None


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where the history of the prompt lives: `$ECOKV_HOME`, else the XDG state folder."""
    environ = os.environ if environ is None else environ
    if environ.get("ECOKV_HOME"):
        return Path(environ["ECOKV_HOME"]).expanduser()
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "ecokv"
    if os.name == "nt" and environ.get("LOCALAPPDATA"):
        return Path(environ["LOCALAPPDATA"]) / "ecokv"
    return _home() / ".local" / "state" / "ecokv"


def project_file() -> Path | None:
    """Nearest `ecokv.toml` from the working folder up to the root of its repository."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    for folder in (here, *here.parents):
        file = folder / FILE_NAME
        if file.is_file():
            return file
        if (folder / ".git").exists() or folder == _home():
            return None
    return None


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.sep)


def _same(file: Path, other: Path | None) -> bool:
    return other is not None and os.path.samefile(file, other)


def _parse(setting: Setting, raw: Any, where: str) -> Any:
    from ecokv_local.errors import EcokvError

    def one(value: Any) -> Any:
        if isinstance(value, bool):
            return value
        return setting.parse(value)

    try:
        return [one(value) for value in raw] if setting.many else one(raw)
    except BadValue as bad:
        raise usage(f"{where}: {bad.problem}", bad.hint) from None
    except EcokvError as bad:
        raise usage(f"{where}: {bad.message}", bad.hint or "see ecokv chat --help") from None


def _from_environment(setting: Setting, environ: Mapping[str, str]) -> Found | None:
    """Value of the setting's variable; an empty variable counts as unset."""
    given = [name for name in setting.environment if environ.get(name)]
    if not given:
        return None
    if len(given) > 1:
        raise usage(f"{given[0]} and {given[1]} are the same setting", "unset one of them")
    text = environ[given[0]]
    raw: Any = _several(text) if setting.many else text
    return Found(_parse(setting, raw, given[0]), given[0], ENVIRONMENT)


def _several(text: str) -> list[str]:
    """The paths of a variable, separated as in PATH. A URL is kept whole, to be refused as one."""
    return [text] if "://" in text else [part for part in text.split(os.pathsep) if part]


def _from_file(
    file: Path, rank: int, command: str, settings: tuple[Setting, ...]
) -> dict[str, Found]:
    """Values of one `ecokv.toml`: top-level keys, then the table of the command over them."""
    data = _load(file)
    by_key = BY_KEY | {key: setting for setting in settings for key in setting.keys}
    wanted = {setting.name for setting in settings}
    found: dict[str, Found] = {}
    tables = [({k: v for k, v in data.items() if not isinstance(v, dict)}, "")]
    for key, value in data.items():
        if isinstance(value, dict):
            if key not in COMMANDS:
                known = ", ".join(f"[{name}]" for name in COMMANDS)
                raise usage(f"{file}: there is no table [{key}]", f"known tables: {known}")
            if key == command:
                tables.append((value, f"[{key}] "))
    for table, prefix in tables:
        seen: dict[str, str] = {}
        for key, value in table.items():
            setting = by_key.get(key.replace("_", "-"))
            if setting is None:
                raise usage(f"{file}: {prefix}unknown key {key!r}", _suggest(key))
            if setting.name in seen:
                raise usage(
                    f"{file}: {prefix}{seen[setting.name]} and {key} are the same setting",
                    "keep one of them",
                )
            seen[setting.name] = key
            where = f"{file}: {prefix}{key}"
            parsed = _parse(setting, _as_text(setting, value, where), where)
            if setting.is_path:
                parsed = _relative(parsed, file.parent)
            if setting.name in wanted:
                found[setting.name] = Found(parsed, where, rank)
    return found


def _load(file: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with file.open("rb") as stream:
            return dict(tomllib.load(stream))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as bad:
        raise usage(f"{file}: not valid TOML: {bad}", 'a line is: budget = "25%"') from None
    except OSError as bad:
        raise usage(f"{file}: cannot be read: {bad.strerror}", "check its permissions") from None


def _as_text(setting: Setting, value: Any, where: str) -> Any:
    """TOML value as the text that the flag would have had, so that one parser serves both."""
    if setting.many:
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in items):
            raise usage(f"{where}: {value!r} is not a list of texts", 'write ["one", "two"]')
        return items
    if setting.is_switch:
        if not isinstance(value, bool):
            raise usage(f"{where}: {value!r} is neither true nor false", "write true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise usage(f"{where}: {value!r} is not a value for it", f"write {setting.metavar}")
    return str(value)


def _relative(value: Any, folder: Path) -> Any:
    """Paths in a file are relative to that file; `~` is the home folder."""
    if isinstance(value, list):
        return [_relative(item, folder) for item in value]
    return str(folder / Path(value).expanduser())


def _suggest(key: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key.replace("_", "-"), BY_KEY, 1, 0.5)
    return f"did you mean {near[0]}?" if near else "keys are the long flags: see ecokv chat --help"


def _check_misspelt(environ: Mapping[str, str], result: Settings) -> None:
    """A variable that is nearly a setting's is most likely meant to be it: say so."""
    known = {name for setting in BY_NAME.values() for name in setting.environment}
    unknown = [
        name
        for name in environ
        if name.startswith("ECOKV_") and name not in known and name not in OTHER_VARIABLES
    ]
    if unknown:
        from difflib import get_close_matches

        for name in sorted(unknown):
            near = get_close_matches(name, known, 1, 0.85)
            if near:
                result.warnings.append(f"{name} is not a setting; did you mean {near[0]}?")


def _one_model(result: Settings) -> None:
    """One model per run. The weaker place loses, and so do the projector and adapters beside it."""
    model, hub = result.rank("model"), result.rank("hf_repo")
    if model >= 0 and model == hub:
        raise usage(
            f"{result.where('model')} and {result.where('hf_repo')} both name a model",
            "give one of them",
        )
    if model >= 0 and hub >= 0:
        del result.found["model" if model < hub else "hf_repo"]
    for name in ("mmproj", "lora"):
        if 0 <= result.rank(name) < max(model, hub):
            where = result.where(name)
            result.warnings.append(f"{where} is not used: it belongs to another model")
            del result.found[name]


def _quiet_or_verbose(result: Settings) -> None:
    """One of the two; the stronger place wins."""
    if result.get("quiet") and result.get("verbose"):
        quiet, verbose = result.rank("quiet"), result.rank("verbose")
        if quiet == verbose:
            raise usage(
                f"{result.where('quiet')} and {result.where('verbose')} exclude each other",
                "give one of them",
            )
        del result.found["quiet" if quiet < verbose else "verbose"]
