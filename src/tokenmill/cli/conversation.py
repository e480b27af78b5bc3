"""A conversation with a model, whether it runs in this process or behind a URL."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Protocol

import typer

from tokenmill.core.delta import Delta
from tokenmill.core.errors import InvalidRequest
from tokenmill.core.request import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from tokenmill.engine.worker import EngineWorker

Message = dict[str, str]

# A model may write any character; these would steer the terminal it is shown on.
_STEERING = {code: None for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}


def show_text(text: str) -> None:
    """Writes a piece of an answer to standard output at once."""
    typer.echo(text.translate(_STEERING), nl=False)


class Conversation(Protocol):
    """Something that answers."""

    @property
    def name(self) -> str: ...

    def reply(self, messages: Sequence[Message], sampling: SamplingParams) -> AsyncGenerator[str, None]:
        """Yields the answer's text as it comes. Closing the iterator stops the work on it."""
        ...


class LocalModel:
    """The engine in this process."""

    def __init__(self, worker: EngineWorker) -> None:
        from tokenmill.fleet.local import LocalReplica

        self.name = worker.name
        self._worker = worker
        self._replica = LocalReplica(worker)
        self._numbers = itertools.count()

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of the conversation; of the bare text where the model has no chat template."""
        template, tokenizer = self._worker.chat_template, self._worker.tokenizer
        if template is not None:
            return tuple(tokenizer.encode(template.render(messages), add_special=False))
        if len(messages) > 1:
            raise InvalidRequest("this model has no chat template: it continues text, it does not converse")
        return tuple(tokenizer.encode(messages[0]["content"], add_special=True))

    async def stream(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        request = GenerateRequest(
            request_id=f"cli-{next(self._numbers)}",
            prompt_ids=self.prompt(messages),
            sampling=sampling,
            model=self.name,
        )
        async with contextlib.aclosing(self._replica.generate(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def reply(self, messages: Sequence[Message], sampling: SamplingParams) -> AsyncGenerator[str, None]:
        async with contextlib.aclosing(self.stream(messages, sampling)) as deltas:
            async for delta in deltas:
                yield delta.text
