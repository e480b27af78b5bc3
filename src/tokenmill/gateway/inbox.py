"""Where the deltas of one answer wait until the connection takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType

import msgspec

from tokenmill.core.delta import Delta
from tokenmill.core.errors import EngineStopped
from tokenmill.gateway.http import ClientGone

Source = AsyncGenerator[Delta, None]


def merge(index: int, deltas: Sequence[Delta]) -> Delta:
    """Consecutive deltas of one choice as one, under the choice's number in the answer."""
    last = deltas[-1]
    if len(deltas) == 1:
        return last if last.index == index else msgspec.structs.replace(last, index=index)
    return Delta(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        usage=last.usage,
        prompt_logprobs=deltas[0].prompt_logprobs,
        embedding=last.embedding,
    )


class Inbox:
    """Runs the sources of one answer and holds their deltas, by choice, until they are taken.

    Source number k makes the choices k * n to k * n + n - 1. Leaving the context closes every source and
    waits until it is closed, so no source outlives its answer, however that ends. What is held is at
    most the answer itself.
    """

    def __init__(self, sources: Sequence[Source], n: int) -> None:
        self._sources = sources
        self._n = n
        self._running = len(sources)
        self._held: dict[int, list[Delta]] = {}
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._error: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Inbox:
        if not self._over.is_set():  # else the client left before anything was started
            self._tasks = [
                asyncio.create_task(self._run(source, number * self._n))
                for number, source in enumerate(self._sources)
            ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def client_gone(self) -> None:
        """From now on there is nothing to take, whatever waits; safe to call at any time."""
        self._error = ClientGone()
        self._over.set()
        self._news.set()

    async def take(self) -> list[Delta]:
        """What is new, one delta a choice; empty once every choice has finished.

        Raises what a source raised, after the deltas that came before it, and ClientGone at once.
        """
        while not self._held and not self._over.is_set():
            self._news.clear()
            await self._news.wait()
        if self._error is not None and (not self._held or isinstance(self._error, ClientGone)):
            raise self._error
        held, self._held = self._held, {}
        return [merge(index, deltas) for index, deltas in held.items()]

    async def take_all(self) -> list[Delta]:
        """Waits for the end: the whole output of every choice, in order of choice."""
        await self._over.wait()
        if self._error is not None:
            raise self._error
        return [merge(index, self._held[index]) for index in sorted(self._held)]

    async def _run(self, source: Source, first_choice: int) -> None:
        finished = 0
        try:
            async with aclosing(source):
                async for delta in source:
                    self._held.setdefault(first_choice + delta.index, []).append(delta)
                    finished += delta.finish_reason is not None
                    self._news.set()
            if finished != self._n:
                raise _cut_short()
        except Exception as error:
            self._end(error)
        except asyncio.CancelledError:
            self._end(_cut_short())
            raise
        else:
            self._running -= 1
            if self._running == 0:
                self._end(None)

    def _end(self, error: Exception | None) -> None:
        """The first end counts, but for a client that is gone."""
        if not self._over.is_set():
            self._error = error
            self._over.set()
            self._news.set()


def _cut_short() -> EngineStopped:
    return EngineStopped("the engine stopped before the answer was complete")
