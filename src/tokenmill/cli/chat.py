"""`tokenmill chat`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Annotated

import typer

from tokenmill.cli.config import flag_name
from tokenmill.cli.conversation import Conversation, LocalModel, Message, show_text
from tokenmill.cli.load import load, settings
from tokenmill.cli.options import Config, takes
from tokenmill.cli.report import reporter
from tokenmill.cli.sampling import DEFAULT_MAX_TOKENS, MaxTokens, Seed, Temperature, sampling
from tokenmill.core.errors import ConfigError, TokenmillError
from tokenmill.core.flags import ModelFlags, ServerFlags
from tokenmill.core.request import SamplingParams

HINT = "Ctrl-C stops an answer; /exit or Ctrl-D leaves."


@takes(ServerFlags, ModelFlags, only=frozenset({"api_key", *ModelFlags.model_fields}))
def command(
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Use this server instead of loading a model."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Model to talk with.")] = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    config: Config = None,
    *,
    flags: dict[str, object],
) -> None:
    """Talk with a model: on a running server with --url, else loaded here."""
    params = sampling(max_tokens, temperature, seed)
    idle = sorted(name for name in flags if url is not None and name in ModelFlags.model_fields)
    if idle:
        raise ConfigError(f"{flag_name(idle[0])} has no effect with --url: the server has its own settings")
    found = settings(flags, config, model, default=True)
    with asyncio.Runner() as runner:
        if url is not None:
            from tokenmill.bench.asking import first_model
            from tokenmill.cli.remote import RemoteModel, base, headers

            key = found.server.api_key
            name = model or runner.run(first_model(base(url), headers(key)))
            failed = not converse(RemoteModel(url, name, key), params, runner)
            raise typer.Exit(exit_code(failed))
        worker = load(found.model, found.engine, reporter(as_json=False))
        try:
            failed = not converse(LocalModel(worker), params, runner)
        finally:
            worker.stop()
        raise typer.Exit(exit_code(failed))


def exit_code(failed: bool) -> int:
    """A script must learn of a failed answer; whoever sits at the terminal has read of it."""
    return 1 if failed and not sys.stdin.isatty() else 0


def converse(model: Conversation, params: SamplingParams, runner: asyncio.Runner) -> bool:
    """Asks, answers and remembers until the user leaves. Whether no answer failed."""
    typer.echo(f"{model.name}. {HINT}", err=True)
    history: list[Message] = []
    well = True
    while True:
        try:
            text = ask()
        except KeyboardInterrupt:
            typer.echo(f"\n{HINT}", err=True)
            continue
        if text is None or text == "/exit":
            return well
        if text == "/clear":
            history.clear()
        elif text:
            well = answer(model, history, text, params, runner) and well


def ask() -> str | None:
    """One line from the user, None at the end of input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        typer.echo("", err=True)
        return None


def answer(
    model: Conversation, history: list[Message], text: str, params: SamplingParams, runner: asyncio.Runner
) -> bool:
    """One turn, False when it failed. `history` keeps what was shown of an answer, whole or not."""
    asked: Message = {"role": "user", "content": text}
    said: list[str] = []
    well = True
    try:
        runner.run(_show(model, [*history, asked], params, said))
    except KeyboardInterrupt:
        typer.echo(" [stopped]", nl=False)
    except TokenmillError as error:
        typer.echo(f"error: {error.message} (/clear starts over)", err=True)
        well = False
    typer.echo("")
    if said:
        history += [asked, {"role": "assistant", "content": "".join(said)}]
    return well


async def _show(
    model: Conversation, messages: list[Message], params: SamplingParams, said: list[str]
) -> None:
    async with contextlib.aclosing(model.reply(messages, params)) as parts:
        async for part in parts:
            said.append(part)
            show_text(part)
