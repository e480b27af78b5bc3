"""A scripted replica, a tokenizer of bytes, and a server around them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx2
import pytest

from tokenmill.core.bus import Bus
from tokenmill.core.clock import Clock, ManualClock
from tokenmill.core.delta import Delta, TokenLogprob, TopLogprob, Usage
from tokenmill.core.errors import ContextLengthExceeded, Draining, EngineStopped
from tokenmill.core.events import Event, HttpAnswered
from tokenmill.core.request import GenerateRequest
from tokenmill.fleet.replica import ReplicaStats
from tokenmill.gateway.app import GatewayApp, Limits, ServedModel, build_app
from tokenmill.observe.metrics import Metrics

MODEL = "org/tiny"
BOS = 256
VOCAB = 300
MAX_MODEL_LEN = 512

Script = Callable[[GenerateRequest], AsyncGenerator[Delta, None]]


class ByteTokenizer:
    """Token ids are the bytes of the text; 256 is the beginning of a sequence."""

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        return [BOS] * add_special + list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        pieces = [bytes([i]) if i < 256 else b"" if skip_special else b"<s>" for i in ids]
        return b"".join(pieces).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        return "<s>" if token_id == BOS else bytes([token_id]).decode(errors="replace")


class LineTemplate:
    """One line a message: `role: content`."""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return "<s>" + "".join(lines) + ("assistant:" if add_generation_prompt else "")


def words(request: GenerateRequest, index: int) -> list[str]:
    """The answer of the default script: a function of prompt, seed and choice alone."""
    key = repr((request.prompt_ids, request.sampling.seed, request.sampling.temperature, index))
    digest = hashlib.sha256(key.encode()).hexdigest()
    return [f" {digest[place : place + 4]}" for place in range(0, 24, 4)]


def logprob(word: str, alternatives: int) -> TokenLogprob:
    top = tuple(TopLogprob(i, f" alt{i}", b" alt%d" % i, -1.0 - i) for i in range(alternatives))
    return TokenLogprob(7, word, word.encode(), -0.5, top)


async def speak(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
    """The default script: six words, or as many as max_tokens allows; choices take turns."""
    sampling = request.sampling
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
                usage=Usage(len(request.prompt_ids), limit, 2) if last else None,
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
        self._draining = False
        self._changed = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if self._draining:
            raise Draining("the replica takes no new requests")
        if len(request.prompt_ids) + (request.sampling.max_tokens or 1) > MAX_MODEL_LEN - 12:
            raise ContextLengthExceeded("that can never fit", param="prompt")
        self.requests.append(request)
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


@dataclass
class Gateway:
    """An application over a scripted replica, with everything it published."""

    app: GatewayApp
    replica: ScriptedReplica
    metrics: Metrics
    events: list[Event]

    def answered(self) -> list[HttpAnswered]:
        return [event for event in self.events if isinstance(event, HttpAnswered)]

    def client(self, **headers: str) -> httpx2.AsyncClient:
        """Calls the application without a socket."""
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers)


MakeGateway = Callable[..., Gateway]


@pytest.fixture
def make_gateway() -> Iterator[MakeGateway]:
    made: list[Gateway] = []

    def make(
        script: Script = speak,
        *,
        api_key: str | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        max_waiting: int = 1024,
        chat_template: LineTemplate | None = LineTemplate(),  # noqa: B008  # stateless
    ) -> Gateway:
        replica = ScriptedReplica(script)
        clock = clock or ManualClock(1_700_000_000.0)
        bus, metrics, events = Bus(), Metrics(MODEL, "0", clock=clock), list[Event]()
        bus.subscribe(metrics.on_event)
        bus.subscribe(events.append)
        served = ServedModel(
            name=MODEL,
            created=1_700_000_000,
            tokenizer=ByteTokenizer(),
            chat_template=chat_template,
            replica=replica,
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB,
        )
        app = build_app(
            served,
            bus=bus,
            metrics=metrics,
            api_key=api_key,
            clock=clock,
            limits=limits,
            max_waiting=max_waiting,
        )
        made.append(Gateway(app, replica, metrics, events))
        return made[-1]

    yield make
    for gateway in made:
        gateway.app.close()


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway()
