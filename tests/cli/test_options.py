"""Options come from the flag table, all of it, and only from there."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer

from tokenmill.cli.config import flag_name
from tokenmill.cli.options import SectionedCommand, option_names, takes
from tokenmill.core.flag_rules import allowed
from tokenmill.core.flags import ModelFlags, ServerFlags

TABLES: list[type[ModelFlags] | type[ServerFlags]] = [ModelFlags, ServerFlags]


def parse(*arguments: str) -> dict[str, object]:
    """What a command with all options is given for these arguments."""
    got: dict[str, object] = {}

    @takes(ServerFlags, ModelFlags)
    def command(*, flags: dict[str, object]) -> None:
        got.update(flags)

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=SectionedCommand)(command)
    typer.main.get_command(app)(list(arguments), standalone_mode=False)
    return got


def help_text() -> str:
    @takes(ServerFlags, ModelFlags)
    def command(*, flags: dict[str, object]) -> None: ...

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command("serve", cls=SectionedCommand)(command)
    built: Any = typer.main.get_command(app)
    with built.make_context("serve", []) as context:
        text: str = built.get_help(context)
    return text


def test_every_field_of_the_table_is_an_option_with_its_help_and_default() -> None:
    text = " ".join(help_text().split())
    for table in TABLES:
        for name, field in table.model_fields.items():
            assert flag_name(name) in text
            assert str(field.description).split(";")[0][:24] in text
    assert "[default: 8000]" in text and "[default: 0.5]" in text and "[default: on]" in text


def test_help_never_cuts_a_name_short() -> None:
    assert "…" not in help_text()


def test_only_what_the_user_gave_is_passed_on() -> None:
    assert parse() == {}
    assert parse("--port", "0", "--dtype=float32") == {"port": "0", "dtype": "float32"}


def test_a_switch_has_two_names() -> None:
    assert parse("--enable-prefix-caching") == {"enable_prefix_caching": True}
    assert parse("--no-enable-prefix-caching") == {"enable_prefix_caching": False}


def test_the_foreign_name_of_a_flag_sets_it() -> None:
    assert parse("--num-gpu-blocks-override", "64") == {"num_kv_blocks": "64"}


def test_only_restricts_the_options() -> None:
    @takes(ServerFlags, ModelFlags, only=frozenset({"api_key"}))
    def command(*, flags: dict[str, object]) -> None: ...

    assert list(inspect.signature(command).parameters) == ["api_key"]


@pytest.mark.parametrize("table", TABLES)
def test_every_field_can_say_what_it_allows(table: type[ModelFlags | ServerFlags]) -> None:
    for name, field in table.model_fields.items():
        assert allowed(field).startswith("must be "), name
        assert next(option_names(name, field)).startswith("--")
