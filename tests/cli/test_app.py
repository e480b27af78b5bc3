"""Endings: exit codes, one line on standard error or one JSON object, and no imports nobody asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest

from tokenmill import __version__
from tokenmill.cli import app, version
from tokenmill.core.errors import DownloadError, TokenmillError, UnknownModel


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TOKENMILL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes `tokenmill version` end with an exception."""

    def fail_with(error: BaseException) -> None:
        def command() -> NoReturn:
            raise error

        monkeypatch.setattr(version, "command", command)

    return fail_with


def test_version_is_told_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--version"]) == 0
    assert app.run(["version"]) == 0
    assert capsys.readouterr().out == f"tokenmill {__version__}\n" * 2
    assert app.run(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": __version__}


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--help"]) == 0
    out = capsys.readouterr().out
    for name, line in app.COMMANDS.items():
        assert f"  {name}" in out and line in out


def test_no_command_shows_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([]) == 2
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sevre"], "No such command 'sevre'. Did you mean 'serve'? (see tokenmill --help)"),
        (["--versio"], "unknown option --versio; did you mean --version? (see tokenmill --help)"),
        (
            ["serve", "m", "--max-num-seq", "3"],
            "unknown option --max-num-seq; did you mean --max-num-seqs? (see tokenmill serve --help)",
        ),
        (
            ["serve", "m", "--blok-siz"],
            "unknown option --blok-siz; did you mean --block-size? (see tokenmill serve --help)",
        ),
        (["serve", "m", "--port", "x"], "--port='x': must be an integer from 0 to 65535"),
        (["serve"], "no model named: tokenmill serve MODEL (tokenmill models lists those known)"),
        (["run"], "Missing argument 'PROMPT'. (see tokenmill run --help)"),
        (["run", "hi", "--temperature", "9"], "--temperature must be a number from 0 to 2, not 9.0"),
        (
            ["chat", "--url", "http://127.0.0.1:1", "--dtype", "float32"],
            "--dtype has no effect with --url: the server has its own settings",
        ),
    ],
)
def test_asking_wrongly_is_exit_code_2_and_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"error: {message}\n"


@pytest.mark.parametrize(
    "arguments", [["pull", "nope"], ["serve", "nope", "--port", "0"], ["run", "hi", "--model", "nope"]]
)
def test_a_model_nobody_knows_was_asked_for_wrongly(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(arguments) == 2
    assert capsys.readouterr().err.startswith("error: there is no model 'nope'; the nearest name is ")


def test_with_json_an_error_is_one_object_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["up", "--json", "--block-size", "17"]) == 2
    assert app.run(["up", "--json", "--blok-size", "16"]) == 2
    shown = capsys.readouterr()
    first, second = map(json.loads, shown.out.splitlines())
    assert first == {
        "event": "error",
        "code": "config_error",
        "message": "--block-size='17': must be 16, 32, 64 or 128",
    }
    assert second["code"] == "usage_error"
    assert "did you mean --block-size?" in second["message"]
    assert shown.err == ""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (TokenmillError("it broke"), 1, "it broke"),
        (UnknownModel("no such model"), 2, "no such model"),
        (DownloadError("nothing came [red]of it"), 1, "nothing came [red]of it"),
        (ValueError("oops"), 1, "ValueError: oops (this is a bug)"),
        (KeyboardInterrupt(), 130, "stopped before it was done"),
        (SystemExit(143), 143, "stopped before it was done"),
    ],
)
def test_failing_is_one_line_without_a_traceback(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    failing(error)
    assert app.run(["version"]) == code
    assert capsys.readouterr().err == f"error: {line}\n"


def test_debug_adds_the_traceback(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENMILL_DEBUG", "1")
    failing(TokenmillError("it broke"))
    assert app.run(["version"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback") and shown.endswith("error: it broke\n")


@pytest.mark.parametrize("arguments", [[], *([name] for name in app.COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    heavy = ("torch", "numpy", "aiohttp", "uvicorn", "starlette", "tokenizers", "jinja2", "huggingface_hub")
    program = (
        "import sys; from tokenmill.cli.app import run; code = run(sys.argv[1:]); "
        f"print('loaded', *(name for name in {heavy!r} if name in sys.modules)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded"
