"""The Typer application: which commands there are, and how a setting becomes a flag."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from ecokv_cli.commands import (
    analyze,
    bench,
    caption,
    chat,
    doctor,
    estimate,
    eval,
    explain,
    read,
    validate,
)
from ecokv_cli.options import BY_NAME
from ecokv_cli.output import Output
from ecokv_cli.setting import Setting
from ecokv_cli.settings import resolve

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
DESCRIPTION = (
    "Local models that see, with a KV cache kept small: runs GGUF models and their projectors and "
    "evicts what the answer does not need."
)

PROMPT_ARGUMENT = ("[PROMPT]", "Question, as with -p.")


class GroupedCommand(TyperCommand):
    """Lists flags under the title of their group, in the order they are declared.

    ``settings`` are those of the command, by name: it may word one of them in its own way;
    ``argument`` is how it calls its argument, and what that is.
    """

    settings: ClassVar[Mapping[str, Setting]] = BY_NAME
    argument: ClassVar[tuple[str, str] | None] = PROMPT_ARGUMENT

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.params:
            setting = self.settings.get(str(param.name))
            if param.param_type_name == "argument" and self.argument is not None:
                rows.setdefault("Arguments", []).append(self.argument)
            elif setting is not None:
                rows.setdefault(setting.group, []).append((_spelling(setting), setting.help))
        rows.setdefault("Output", []).append(("-h, --help", "Show this and exit."))
        for title, entries in rows.items():
            with formatter.section(title):
                formatter.write_dl(entries)


def _spelling(setting: Setting) -> str:
    text = ", ".join(setting.flags)
    if setting.is_switch:
        return f"{text} / {setting.off}"
    return f"{text} {setting.metavar}"


def _callback(module: ModuleType) -> Callable[..., int]:
    """The function that Typer calls for a command: flags in, settings resolved, `run` called with
    the argument: one text or none, or a list if the command takes several; always None for a
    command whose `ARGUMENT` is None.
    """
    many = module in _WITH_PATHS

    def command(argument: Any = None, **flags: Any) -> int:
        settings = resolve(module.NAME, module.GROUPS, flags)
        out = Output(
            as_json=settings.get("json", False),
            stream=not settings.get("no_stream", False),
            quiet=settings.get("quiet", False),
            verbose=settings.get("verbose", False),
        )
        for warning in settings.warnings:
            out.warn(warning)
        return int(module.run(settings, out, argument))

    kind: Any = list[str] | None if many else str | None
    metavar = "PATH" if many else "PROMPT"
    argument = _parameter("argument", kind, typer.Argument(metavar=metavar))
    parameters = [
        *([] if _argument(module) is None else [argument]),
        *(_flag(setting) for setting in module.GROUPS),
    ]
    command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    return command


def _flag(setting: Setting) -> inspect.Parameter:
    """The flag of a setting. It is text here: values are parsed later, whatever their source."""
    if setting.is_switch:
        last = f"{setting.flags[-1]}/{setting.off}"
        kind: Any = bool | None
        option = typer.Option(*setting.flags[:-1], last)
    else:
        kind = list[str] | None if setting.many else str | None
        option = typer.Option(*setting.flags, metavar=setting.metavar)
    return _parameter(setting.name, kind, option)


def _parameter(name: str, kind: Any, info: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info]
    )


def _version(value: bool) -> None:
    if value:
        import ecokv_local

        print(f"ecokv {ecokv_local.__version__}")
        raise typer.Exit


class Group(TyperGroup):
    """The program itself; an unknown command is told together with those that exist."""


app = typer.Typer(
    name="ecokv",
    cls=Group,
    help=DESCRIPTION,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
    context_settings=CONTEXT,
)


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit


def _argument(module: ModuleType) -> tuple[str, str] | None:
    """How a command calls its argument, and what that is."""
    found: tuple[str, str] | None = getattr(module, "ARGUMENT", PROMPT_ARGUMENT)
    return found


def _class(module: ModuleType) -> type[GroupedCommand]:
    fields = {"settings": {s.name: s for s in module.GROUPS}, "argument": _argument(module)}
    return type("Command", (GroupedCommand,), fields)


#: Commands whose argument is a list of paths.
_WITH_PATHS = (caption, eval, read)

#: In the order of the help.
_COMMANDS = (
    chat,
    read,
    caption,
    bench,
    eval,
    explain,
    analyze,
    validate,
    estimate,
    doctor,
)

for _module in _COMMANDS:
    app.command(
        _module.NAME,
        cls=_class(_module),
        help=_module.HELP,
        epilog=_module.EPILOG,
        context_settings=CONTEXT,
        short_help=_module.HELP.splitlines()[0],
    )(_callback(_module))
