"""A gateway around a scripted replica, called directly, by raw ASGI, or over a socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec

from support.scripted import (
    HIDDEN,
    MAX_MODEL_LEN,
    MODEL,
    VOCAB,
    ByteTokenizer,
    LineTemplate,
    Script,
    ScriptedReplica,
    speak,
)
from tokenmill.core.bus import Bus
from tokenmill.core.clock import Clock, ManualClock
from tokenmill.core.events import Event, HttpAnswered
from tokenmill.core.request import Pooling
from tokenmill.gateway.app import GatewayApp, Limits, ServedModel, build_app
from tokenmill.gateway.served import TextCodec
from tokenmill.gateway.server import HttpServer, bind, url
from tokenmill.observe.metrics import Metrics

CREATED = 1_700_000_000
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"


@dataclass
class Gateway:
    """An application over a scripted replica, with everything it published."""

    app: GatewayApp
    served: ServedModel
    replica: ScriptedReplica
    metrics: Metrics
    events: list[Event]

    def answered(self) -> list[HttpAnswered]:
        return [event for event in self.events if isinstance(event, HttpAnswered)]

    def client(self, **headers: str) -> httpx2.AsyncClient:
        """Calls the application without a socket."""
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)

    async def post(self, path: str, body: object, **headers: str) -> httpx2.Response:
        async with self.client(**headers) as client:
            return await client.post(path, json=body)

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        async with self.client(**headers) as client:
            return await client.get(path)

    async def stream(self, path: str, body: dict[str, object]) -> list[dict[str, Any]]:
        """The chunks of a stream, whose end is checked."""
        response = await self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        return chunks(response.text)


def make_gateway(
    script: Script = speak,
    *,
    api_key: str | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
    max_waiting: int = 1024,
    aliases: tuple[str, ...] = (),
    pooling: Pooling | None = "mean",
    template: LineTemplate | None = LineTemplate(),  # noqa: B008  # it has no state
    tokenizer: TextCodec = ByteTokenizer(),  # noqa: B008  # it has no state
) -> Gateway:
    replica = ScriptedReplica(script)
    clock = clock or ManualClock(CREATED)
    bus, metrics, events = Bus(), Metrics(MODEL, "0", clock=clock), list[Event]()
    bus.subscribe(metrics.on_event)
    bus.subscribe(events.append)
    served = ServedModel(
        name=MODEL,
        created=CREATED,
        tokenizer=tokenizer,
        chat_template=template,
        replica=replica,
        max_model_len=MAX_MODEL_LEN,
        vocab_size=VOCAB,
        aliases=aliases,
        pooling=pooling,
        hidden=HIDDEN,
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
    return Gateway(app, served, replica, metrics, events)


def chunks(text: str) -> list[dict[str, Any]]:
    """The JSON of every event; checks framing and that `[DONE]` is the last."""
    events = text.split("\n\n")
    assert events[-1] == "", "the last event is not finished"
    data = [event.removeprefix("data: ") for event in events[:-1] if not event.startswith(":")]
    assert all("\n" not in line for line in data)
    assert data[-1] == "[DONE]"
    assert "[DONE]" not in data[:-1]
    return [msgspec.json.decode(line) for line in data[:-1]]


def chat(content: str = "hi", /, **fields: object) -> dict[str, object]:
    """A small chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def completion(prompt: object = "hi", /, **fields: object) -> dict[str, object]:
    """A small text-completion request."""
    return {"model": MODEL, "prompt": prompt, **fields}


def embedding(input: object = "hi", /, **fields: object) -> dict[str, object]:
    """A small request for embeddings."""
    return {"model": MODEL, "input": input, **fields}


@dataclass
class RawCall:
    """One ASGI call in slow motion: what was sent so far, and a client that may hang up."""

    app: GatewayApp
    path: str
    body: bytes
    method: str = "POST"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    hang_up: asyncio.Event = field(default_factory=asyncio.Event)
    _body_given: bool = False

    async def run(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "query_string": b"",
        }
        await self.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, object]:
        if not self._body_given:
            self._body_given = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.hang_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(dict(message))


@asynccontextmanager
async def listening(gateway: Gateway) -> AsyncIterator[str]:
    """Serves on a free port of the loopback, on this event loop; gives the URL."""
    sockets = bind("127.0.0.1", 0)
    server = HttpServer(gateway.app)
    running = asyncio.create_task(server.serve(sockets=sockets))
    await server.listening.wait()
    try:
        yield url("127.0.0.1", sockets[0])
    finally:
        server.should_exit = True
        await running


@contextmanager
def listening_thread(gateway: Gateway) -> Iterator[str]:
    """The same on a thread of its own, for many tests that share one server."""
    address: list[str] = []
    up, loop_and_stop = threading.Event(), list[Any]()

    async def main() -> None:
        stop = asyncio.Event()
        loop_and_stop.extend((asyncio.get_running_loop(), stop))
        async with listening(gateway) as found:
            address.append(found)
            up.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    if not up.wait(10):
        raise TimeoutError("the server did not come up")
    try:
        yield address[0]
    finally:
        loop, stop = loop_and_stop
        loop.call_soon_threadsafe(stop.set)
        thread.join()
