"""From parsed requests to a sent answer, for every dialect: admission, running, streaming, ending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tokenmill.core.delta import Delta
from tokenmill.core.errors import Draining, NotReady
from tokenmill.core.request import GenerateRequest, Pooling, SamplingParams
from tokenmill.gateway import sse
from tokenmill.gateway.http import ClientGone, Exchange, public_error
from tokenmill.gateway.inbox import Inbox, Source
from tokenmill.gateway.openai_types import UsageSum
from tokenmill.gateway.served import Serving

# Log-probabilities that are written in a few milliseconds.
ON_LOOP_ENTRIES = 1000
# As many take as long as one embedding.
EMBEDDING_ENTRIES = 62


class WholeRenderer(Protocol):
    """How a dialect writes one answer in one piece."""

    def whole(self, deltas: Sequence[Delta], usage: UsageSum) -> object:
        """The answer, from one delta a choice."""
        ...


class StreamRenderer(Protocol):
    """How a dialect writes one answer as events."""

    def frames(self, delta: Delta) -> bytes:
        """The stream events of one delta; may be empty."""
        ...

    def last_frames(self, usage: UsageSum) -> bytes:
        """What follows when every choice has finished; may be empty."""
        ...


@dataclass(frozen=True)
class Job:
    """What to run and how to answer: as events if there is a `stream`. Each source gives `n` choices."""

    sources: Sequence[Source]
    n: int
    whole: WholeRenderer
    stream: StreamRenderer | None = None


async def generate(
    serving: Serving, exchange: Exchange, prepare: Callable[[Serving, Exchange], Awaitable[Job]]
) -> None:
    """Answers one request that the replica works for; `prepare` reads it."""
    _admit(serving)
    with serving.entry():
        job = await prepare(serving, exchange)
    _admit(serving)  # again: reading and tokenizing the prompt took time
    await _answer(serving, exchange, job)


def _admit(serving: Serving) -> None:
    """Raises Draining or NotReady when no new work is taken."""
    if serving.draining:
        raise Draining("the server is stopping and takes no new requests")
    stats = serving.model.replica.stats()
    if not stats.ready:
        raise NotReady(f"the model is not ready: {stats.reason or 'it is still loading'}")


def make_request(
    serving: Serving,
    exchange: Exchange,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    pooling: Pooling | None = None,
) -> GenerateRequest:
    """The request for the replica. Its id begins with the client's and is unique, whatever that is."""
    return GenerateRequest(
        request_id=f"{exchange.request_id}-{next(serving.serial)}",
        prompt_ids=tuple(prompt_ids),
        sampling=sampling,
        model=serving.model.name,
        pooling=pooling,
        trace=exchange.trace(),
    )


async def _answer(serving: Serving, exchange: Exchange, job: Job) -> None:
    """Runs the job and sends its answer. Raises ClientGone, or what failed before the first byte."""
    usage = UsageSum(job.n)
    inbox = Inbox(job.sources, job.n)
    # The replica is done with a request before its client learns the end of it.
    if job.stream is not None:
        async with exchange.watching(inbox.client_gone), inbox:
            tail = await _stream(exchange, inbox, job.stream, usage, serving.limits.keepalive_s)
        await exchange.write(tail)
        await exchange.end_stream()
        return
    async with exchange.watching(inbox.client_gone), inbox:
        deltas = await inbox.take_all()
    _count(deltas, usage, exchange)
    took = (b"openai-processing-ms", b"%d" % (exchange.seconds() * 1000))
    body = await _written(deltas, lambda given: msgspec.json.encode(job.whole.whole(given, usage)))
    await exchange.respond(200, body, headers=[took])


async def _stream(
    exchange: Exchange, inbox: Inbox, renderer: StreamRenderer, usage: UsageSum, keepalive_s: float
) -> bytes:
    """Sends everything but the end, which it returns."""
    # Nothing is sent before the first news or the first silence: until then a failure is a proper status.
    deltas = await _next(inbox, keepalive_s)
    await exchange.start_stream(sse.CONTENT_TYPE, sse.HEADERS)
    try:
        while deltas is None or deltas:
            if deltas is None:
                await exchange.write_comment(sse.KEEP_ALIVE)
            else:
                _count(deltas, usage, exchange)
                if data := await _written(deltas, lambda given: b"".join(map(renderer.frames, given))):
                    await exchange.write(data)
            deltas = await _next(inbox, keepalive_s)
        return renderer.last_frames(usage) + sse.DONE
    except ClientGone:
        raise
    except Exception as error:
        shown = public_error(error, exchange)
        exchange.error_code = shown.code
        return sse.error_event(shown) + sse.DONE


async def _written(deltas: Sequence[Delta], write: Callable[[Sequence[Delta]], bytes]) -> bytes:
    """Long lists of numbers are written on a thread, so that other connections get their turns."""
    entries = sum(
        len(delta.logprobs) + len(delta.prompt_logprobs) + EMBEDDING_ENTRIES * bool(delta.embedding)
        for delta in deltas
    )
    return await asyncio.to_thread(write, deltas) if entries > ON_LOOP_ENTRIES else write(deltas)


def _count(deltas: Sequence[Delta], usage: UsageSum, exchange: Exchange) -> None:
    for delta in deltas:
        usage.add(delta)
    exchange.output_tokens = usage.completion_tokens


async def _next(inbox: Inbox, keepalive_s: float) -> list[Delta] | None:
    """What is new; empty at the end, None after so many seconds of silence."""
    silence = asyncio.timeout(keepalive_s)
    try:
        async with silence:
            return await inbox.take()
    except TimeoutError:
        if not silence.expired():  # a source's own failure
            raise
        return None
