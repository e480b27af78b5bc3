"""Entry point: finds the command, and turns every ending into one line and an exit code.

0 it worked, 1 it failed, 2 it was asked wrongly, 130 and 143 it was interrupted.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from tokenmill.core.errors import ConfigError, InvalidRequest, TokenmillError, UnknownModel
from tokenmill.core.version import VERSION

# The help page shows these lines; a command's module is imported when the command is used.
COMMANDS: Mapping[str, str] = {
    "up": "Fetch, load and serve the default model.",
    "serve": "Serve a model over the OpenAI-compatible API.",
    "run": "Answer one prompt and show what it took.",
    "chat": "Talk with a model, here or on a running server.",
    "pull": "Fetch a model for later.",
    "models": "List the models that are known and those installed.",
    "peaks": "Measure how fast this machine reads memory and multiplies.",
    "version": "Show the version.",
}

# Boxes would cut the names of long options short.
PLAIN: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}

INTERRUPTED = 130
TERMINATED = 143


class Commands(TyperGroup):
    """Stand-ins until a command is asked for, so that help costs no imports."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, help_line in COMMANDS.items():
            self.add_command(TyperCommand(name, help=help_line))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in COMMANDS:
            self.add_command(_load(args[0]))
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    from tokenmill.cli.options import SectionedCommand

    module = importlib.import_module(f"tokenmill.cli.{name}")
    single = typer.Typer(**PLAIN)
    single.command(name, cls=SectionedCommand)(module.command)
    return typer.main.get_command(single)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tokenmill {VERSION}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", help="Show the version.", callback=_show_version, is_eager=True
    ),
) -> None:
    """AI infrastructure in one tool. Start with: tokenmill up"""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _terminate(signum: int, frame: object) -> NoReturn:
    raise SystemExit(TERMINATED)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Errors have been shown."""
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, cls=Commands
    )
    app.callback(invoke_without_command=True)(_root)
    as_json = "--json" in arguments
    try:
        code = typer.main.get_command(app)(list(arguments), prog_name="tokenmill", standalone_mode=False)
    except typer.TyperException as error:
        _show_error("usage_error", _usage(error), as_json)
        return 2
    except TokenmillError as error:
        _show_error(error.code, error.message, as_json)
        return 2 if isinstance(error, (ConfigError, InvalidRequest, UnknownModel)) else 1
    except typer.Abort:
        code = INTERRUPTED
    except SystemExit as stop:
        code = stop.code
    except Exception as error:
        _show_error("internal_error", f"{type(error).__name__}: {error} (this is a bug)", as_json)
        return 1
    if code in (INTERRUPTED, TERMINATED):
        _show_error("interrupted", "stopped before it was done", as_json)
    return code if isinstance(code, int) else 0


def _usage(error: typer.TyperException) -> str:
    """The message of a command line that cannot be parsed, naming the nearest option there is."""
    context = getattr(error, "ctx", None)
    wrong = getattr(error, "option_name", None)
    command = context.command_path if context is not None else "tokenmill"
    text = error.format_message()
    if hasattr(error, "possibilities") and isinstance(wrong, str) and context is not None:
        from tokenmill.core.flag_rules import nearest

        known = [name for param in context.command.get_params(context) for name in param.opts]
        text = f"unknown option {wrong}; did you mean {nearest(wrong, known)}?"
    return f"{text} (see {command} --help)"


def _show_error(code: str, message: str, as_json: bool) -> None:
    if os.environ.get("TOKENMILL_DEBUG") == "1" and sys.exc_info()[0] is not None:
        traceback.print_exc()
    if as_json:
        from tokenmill.cli.report import json_line

        json_line({"event": "error", "code": code, "message": message})
    else:
        from rich.console import Console

        Console(stderr=True, soft_wrap=True).print(
            f"error: {message}", style="red", markup=False, highlight=False
        )


def main() -> None:
    """What the `tokenmill` script calls."""
    signal.signal(signal.SIGTERM, _terminate)
    code = run(sys.argv[1:])
    sys.stdout.flush()
    if code in (INTERRUPTED, TERMINATED):
        # A download or a load may still hold a thread; what it wrote is safe to leave.
        os._exit(code)
    sys.exit(code)
