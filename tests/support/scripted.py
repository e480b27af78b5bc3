"""A replica that follows a script, a tokenizer of bytes and a template of lines: a model without a model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tokenmill.core.delta import Delta, TokenLogprob, TopLogprob, Usage
from tokenmill.core.errors import ContextLengthExceeded, Draining, EngineStopped
from tokenmill.core.request import GenerateRequest
from tokenmill.fleet.replica import ReplicaStats
from tokenmill.gateway.messages import flat_content

MODEL = "org/tiny"
BOS = 256
VOCAB = 300
HIDDEN = 4
MAX_MODEL_LEN = 512
# What fits the engine's memory is less than what fits the model, so that both refusals can be met.
ENGINE_MAX_LEN = 500

Script = Callable[[GenerateRequest], AsyncGenerator[Delta, None]]


class ByteTokenizer:
    """Token ids are the bytes of the text; 256 is the beginning of a sequence."""

    # More than the one byte of every token here, so that a text can be too long before and after encoding.
    longest_token_bytes = 4
    first_token_strips_space = False

    special_tokens: Mapping[str, int] = MappingProxyType({})

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        return [BOS] * add_special + list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        pieces = [bytes([i]) if i < 256 else b"" if skip_special else b"<s>" for i in ids]
        return b"".join(pieces).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == BOS else bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return "<s>" if token_id == BOS else bytes([token_id]).decode(errors="replace")


@dataclass(frozen=True)
class LineTemplate:
    """One line a message: `role: content`; before them one of tools and one of variables, if there are any.

    Attributes:
        source: the marks of a family of models.
        ending: what follows the last message.
    """

    source: str = ""
    reads_tools: bool = False
    ending: str = "assistant:"

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        given = [
            f"{name}: {json.dumps(value)}\n"
            for name, value in {"tools": tools, "extra": extra}.items()
            if value
        ]
        lines = [f"{message['role']}: {flat_content(message)}\n" for message in messages]
        return "<s>" + "".join(given + lines) + (self.ending if add_generation_prompt else "")


def words(request: GenerateRequest, index: int) -> list[str]:
    """The answer of the default script: a function of prompt, seed and choice alone."""
    key = repr((request.prompt_ids, request.sampling.seed, request.sampling.temperature, index))
    digest = hashlib.sha256(key.encode()).hexdigest()
    return [f" {digest[place : place + 4]}" for place in range(0, 24, 4)]


def logprob(word: str, alternatives: int) -> TokenLogprob:
    return TokenLogprob(7, word, word.encode(), -0.5, top_tokens(alternatives))


def top_tokens(count: int) -> tuple[TopLogprob, ...]:
    return tuple(TopLogprob(i, f" alt{i}", b" alt%d" % i, -1.0 - i) for i in range(count))


def prompt_entries(request: GenerateRequest) -> tuple[TokenLogprob | None, ...]:
    """Log-probabilities of a prompt: -1 for its second token, -2 for the third; ranks likewise."""
    alternatives = request.sampling.prompt_logprobs
    if alternatives is None:
        return ()
    name = ByteTokenizer().token_text
    entries = [
        TokenLogprob(token, name(token), bytes([token]), -float(place), top_tokens(alternatives), place + 1)
        for place, token in enumerate(request.prompt_ids[1:], 1)
    ]
    return (None, *entries)


def vector(prompt_ids: Sequence[int]) -> list[float]:
    """The embedding of a prompt: numbers that float32 holds exactly, and different prompts do not share."""
    digest = hashlib.sha256(repr(tuple(prompt_ids)).encode()).digest()
    return [byte / 256 for byte in digest[:HIDDEN]]


async def speak(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
    """The default script: six words, or as many as max_tokens allows; choices take turns."""
    sampling = request.sampling
    size = len(request.prompt_ids)
    if request.pooling is not None:
        data = struct.pack(f"<{HIDDEN}f", *vector(request.prompt_ids))
        yield Delta(embedding=data, finish_reason="stop", usage=Usage(size, 0))
        return
    read = prompt_entries(request)
    if sampling.max_tokens == 0:
        for index in range(sampling.n):
            yield Delta(index=index, finish_reason="length", usage=Usage(size, 0), prompt_logprobs=read)
        return
    answers = [words(request, index) for index in range(sampling.n)]
    limit = min(sampling.max_tokens or 6, 6)
    for place in range(limit):
        for index, answer in enumerate(answers):
            last = place == limit - 1
            wanted = sampling.logprobs is not None
            yield Delta(
                index=index,
                text=answer[place],
                token_ids=(place,),
                logprobs=(logprob(answer[place], sampling.logprobs or 0),) if wanted else (),
                finish_reason=("length" if limit < 6 else "stop") if last else None,
                usage=Usage(size, limit, 2) if last else None,
                prompt_logprobs=read if place == 0 else (),
            )
            await asyncio.sleep(0)


class ScriptedReplica:
    """Answers with a script, and keeps the engine's promises about refusing, closing and draining.

    Like an engine, it runs ahead of whoever reads: a request's deltas wait in its own queue.
    """

    def __init__(self, script: Script = speak) -> None:
        self.script = script
        self.ready = True
        self.reason = ""
        self.waiting = 0
        self.requests: list[GenerateRequest] = []
        self.running: dict[str, asyncio.Queue[Delta | Exception | None]] = {}
        self.ended: dict[str, str] = {}
        self.dead = asyncio.Event()
        self._draining = False
        self._changed = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        if self._draining:
            raise Draining("the replica takes no new requests")
        asked = 0 if request.pooling else request.sampling.max_tokens
        if len(request.prompt_ids) + (1 if asked is None else asked) > ENGINE_MAX_LEN:
            raise ContextLengthExceeded("that can never fit")
        queue = self.running[request.request_id] = asyncio.Queue()
        producer = asyncio.create_task(self._produce(request, queue))
        self._changed.set()
        ended = "aborted"
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, Exception):
                    ended = "failed"
                    raise item
                yield item
            ended = "finished"
        finally:
            producer.cancel()
            del self.running[request.request_id]
            self.ended[request.request_id] = ended
            self._changed.set()

    async def _produce(
        self, request: GenerateRequest, queue: asyncio.Queue[Delta | Exception | None]
    ) -> None:
        try:
            async for delta in self.script(request):
                queue.put_nowait(delta)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds; looks whenever a request starts or ends."""
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def stats(self) -> ReplicaStats:
        return ReplicaStats(
            ready=self.ready and not self._draining,
            reason=self.reason,
            running=len(self.running),
            waiting=self.waiting,
            max_model_len=MAX_MODEL_LEN,
        )

    async def wait_ended(self) -> None:
        await self.dead.wait()

    async def drain(self, timeout: float) -> None:
        self._draining = True
        try:
            async with asyncio.timeout(timeout):
                await self.until(lambda: not self.running)
        except TimeoutError:
            await self.close()

    async def close(self) -> None:
        self._draining = True
        for queue in self.running.values():
            queue.put_nowait(EngineStopped("the engine is stopping"))
        await self.until(lambda: not self.running)
