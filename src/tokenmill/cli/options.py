"""Command-line options made from the flag table, so that a flag is written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from tokenmill.cli.config import flag_name
from tokenmill.core.flag_rules import choices, plain_type
from tokenmill.core.flags import ALIASES, Bytes, ModelFlags, ServerFlags

Command = Callable[..., None]

SECTIONS = {ModelFlags: "Engine options", ServerFlags: "Server options"}

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML file; flags and environment win over it."),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]


def takes(
    *tables: type[ModelFlags | ServerFlags], only: frozenset[str] | None = None
) -> Callable[[Command], Command]:
    """Gives a command the options of these tables.

    The command's parameter `flags` receives a dict of those the user gave, by field name, unchecked:
    `cli.config` checks every source alike.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        made = [
            _parameter(name, field, SECTIONS[table])
            for table in tables
            for name, field in table.model_fields.items()
            if only is None or name in only
        ]

        @functools.wraps(command)
        def wrapper(**given: object) -> None:
            flags = {p.name: given.pop(p.name) for p in made}
            command(**given, flags={name: value for name, value in flags.items() if value is not None})

        kept = [p for p in own.parameters.values() if p.name != "flags"]
        vars(wrapper)["__signature__"] = own.replace(parameters=[*kept, *made])
        return wrapper

    return decorate


def _parameter(name: str, field: FieldInfo, section: str) -> inspect.Parameter:
    flag = plain_type(field) is bool
    option = typer.Option(
        *option_names(name, field),
        help=_help(field),
        metavar=None if flag else metavar(field),
        show_default=False,
        rich_help_panel=section,
    )
    kind = bool if flag else str
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def option_names(name: str, field: FieldInfo) -> Iterator[str]:
    """What the user types: `--port`, or `--enable-x/--no-enable-x`."""
    if plain_type(field) is bool:
        yield f"{flag_name(name)}/--no-{flag_name(name)[2:]}"
    else:
        yield flag_name(name)
        yield from (flag_name(alias) for alias, target in ALIASES.items() if target == name)


def metavar(field: FieldInfo) -> str:
    """The kind of value an option wants, in one word."""
    if choices(field):
        return "|".join(choices(field))
    if Bytes in get_args(field.annotation):
        return "SIZE"
    kind = plain_type(field)
    return "INTEGER" if kind is int else "NUMBER" if kind is float else "TEXT"


def _help(field: FieldInfo) -> str:
    return f"{field.description}{default_text(field)}"


def default_text(field: FieldInfo) -> str:
    """` [default: 64]`; nothing where the description tells it."""
    default = field.default
    if default is None:
        return ""
    if isinstance(default, bool):
        default = "on" if default else "off"
    return f" [default: {default:g}]" if isinstance(default, float) else f" [default: {default}]"


class SectionedCommand(TyperCommand):
    """Help that groups options by the table they come from, and never cuts a name short."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            title = "Arguments" if param.param_type_name == "argument" else "Options"
            if record is not None:
                sections.setdefault(getattr(param, "rich_help_panel", None) or title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
