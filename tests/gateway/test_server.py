"""The life of a server: addresses, ready, signals, drain, exit code."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from support.gateways import CHAT, Gateway, chat, chunks, make_gateway
from tokenmill.core.delta import Delta, Usage
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import GenerateRequest
from tokenmill.gateway import server
from tokenmill.gateway.server import bind, serve, url


class Gate:
    """A script that says one word, waits to be let through, and says the other."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def script(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="before")
        await self.opened.wait()
        yield Delta(text=" after", finish_reason="stop", usage=Usage(1, 2))


@asynccontextmanager
async def serving(gateway: Gateway, drain_timeout: float) -> AsyncIterator[tuple[str, asyncio.Task[int]]]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(
        serve(
            gateway.app,
            gateway.replica,
            host="127.0.0.1",
            port=0,
            drain_timeout=drain_timeout,
            on_ready=ready.set_result,
        )
    )
    try:
        yield await ready, running
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until_draining(client: httpx2.AsyncClient) -> None:
    """The signal arrives on the loop's next turn; the open connection tells when."""
    async with asyncio.timeout(10):
        while (await client.get("/health/ready")).status_code == 200:
            pass


async def test_a_signal_lets_streams_finish_and_exits_with_0() -> None:
    gate = Gate()
    gateway = make_gateway(gate.script)
    async with serving(gateway, drain_timeout=60) as (address, running):
        one = httpx2.Limits(max_connections=1)
        async with (
            httpx2.AsyncClient(base_url=address) as streaming,
            httpx2.AsyncClient(base_url=address, limits=one) as kept,
            streaming.stream("POST", CHAT, json=chat(stream=True)) as stream,
        ):
            assert (await kept.get("/health/ready")).status_code == 200
            os.kill(os.getpid(), signal.SIGTERM)
            await until_draining(kept)
            probe = await kept.get("/health/ready")
            assert (probe.status_code, probe.json()["error"]["code"]) == (503, "draining")
            assert (await kept.get("/health/live")).status_code == 200
            refused = await kept.post(CHAT, json=chat())
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert refused.headers["connection"] == "close"
            async with httpx2.AsyncClient() as late:
                with pytest.raises(httpx2.ConnectError):
                    await late.get(f"{address}/health/ready")
            assert not running.done()
            gate.opened.set()
            text = (await stream.aread()).decode()
        said = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks(text)]
        assert "".join(said) == "before after"
        assert await running == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_does_not_finish_in_time_is_cut_with_an_error(number: signal.Signals) -> None:
    gateway = make_gateway(Gate().script)
    async with serving(gateway, drain_timeout=0.01) as (address, running):
        async with (
            httpx2.AsyncClient(base_url=address) as client,
            client.stream("POST", CHAT, json=chat(stream=True)) as stream,
        ):
            os.kill(os.getpid(), number)
            found = chunks((await stream.aread()).decode())
        assert found[-1]["error"]["code"] == "engine_stopped"
        assert await running == 0


async def test_a_second_signal_ends_it_at_once() -> None:
    gateway = make_gateway(Gate().script)
    async with serving(gateway, drain_timeout=3600) as (address, running):
        async with (
            httpx2.AsyncClient(base_url=address) as client,
            httpx2.AsyncClient(base_url=address) as kept,
            client.stream("POST", CHAT, json=chat(stream=True)) as stream,
        ):
            await kept.get("/health/ready")
            os.kill(os.getpid(), signal.SIGTERM)
            await until_draining(kept)
            os.kill(os.getpid(), signal.SIGTERM)
            found = chunks((await stream.aread()).decode())
        assert found[-1]["error"]["code"] == "engine_stopped"
        assert await running == 0


async def test_an_idle_server_stops_at_once() -> None:
    async with serving(make_gateway(), drain_timeout=3600) as (_, running):
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running, 10) == 0


async def test_when_the_engine_ends_the_server_finishes_what_it_can_and_exits_with_1() -> None:
    gate = Gate()
    gateway = make_gateway(gate.script)
    async with serving(gateway, drain_timeout=60) as (address, running):
        one = httpx2.Limits(max_connections=1)
        async with (
            httpx2.AsyncClient(base_url=address) as streaming,
            httpx2.AsyncClient(base_url=address, limits=one) as kept,
            streaming.stream("POST", CHAT, json=chat(stream=True)) as stream,
        ):
            assert (await kept.get("/health/ready")).status_code == 200
            gateway.replica.dead.set()
            await until_draining(kept)
            async with httpx2.AsyncClient() as late:
                with pytest.raises(httpx2.ConnectError):
                    await late.get(f"{address}/health/ready")
            gate.opened.set()
            text = (await stream.aread()).decode()
        assert chunks(text)[-1]["choices"][0]["finish_reason"] == "stop"
        assert await asyncio.wait_for(running, 10) == 1


async def test_an_engine_that_ends_because_the_server_stops_is_no_failure() -> None:
    gateway = make_gateway(Gate().script)
    async with serving(gateway, drain_timeout=0.05) as (address, running):
        async with (
            httpx2.AsyncClient(base_url=address) as client,
            client.stream("POST", CHAT, json=chat(stream=True)) as stream,
        ):
            os.kill(os.getpid(), signal.SIGTERM)
            while gateway.replica.stats().ready:
                await asyncio.sleep(0)
            gateway.replica.dead.set()
            await stream.aread()
        assert await asyncio.wait_for(running, 10) == 0


async def test_a_replica_that_cannot_drain_does_not_hold_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = make_gateway()

    async def broken(timeout: float) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(gateway.replica, "drain", broken)
    async with serving(gateway, drain_timeout=1) as (_, running):
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running, 10) == 0


async def test_a_replica_that_hangs_does_not_hold_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = make_gateway()

    async def hangs(*_: float) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(server, "FLUSH_S", 0.02)
    monkeypatch.setattr(gateway.replica, "drain", hangs)
    monkeypatch.setattr(gateway.replica, "close", hangs)
    async with serving(gateway, drain_timeout=0.01) as (_, running):
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running, 10) == 0


async def test_the_signal_handlers_are_taken_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with serving(make_gateway(), drain_timeout=1) as (_, running):
        os.kill(os.getpid(), signal.SIGTERM)
        await running
    assert signal.getsignal(signal.SIGTERM) == before


async def test_a_port_in_use_is_told_with_the_way_out(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            await serve(
                gateway.app,
                gateway.replica,
                host="127.0.0.1",
                port=port,
                drain_timeout=1,
                on_ready=lambda _: None,
            )
    assert str(port) in refused.value.message
    assert "127.0.0.1" in refused.value.message
    assert "--port" in refused.value.message


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        bind(host, 0)


def test_localhost_is_bound_on_all_its_addresses_with_one_port() -> None:
    sockets = bind("localhost", 0)
    try:
        assert len({listener.getsockname()[1] for listener in sockets}) == 1
        assert url("localhost", sockets[0]) == f"http://localhost:{sockets[0].getsockname()[1]}"
    finally:
        for listener in sockets:
            listener.close()


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("box", "box")],  # noqa: S104
)
def test_the_url_can_be_typed_as_it_is(host: str, shown: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert url(host, listener) == f"http://{shown}:{listener.getsockname()[1]}"


PROCESS = """
import asyncio, sys
from support.gateways import make_gateway
from tokenmill.core.delta import Delta, Usage
from tokenmill.gateway.server import run, serve

async def script(request):
    yield Delta(text="before")
    while gateway.replica.stats().ready:
        await asyncio.sleep(0.001)
    yield Delta(text=" after", finish_reason="stop", usage=Usage(1, 2))

gateway = make_gateway(script)
code = run(
    serve(
        gateway.app,
        gateway.replica,
        host="127.0.0.1",
        port=0,
        drain_timeout=20,
        on_ready=lambda url: sys.stdout.write(url + "\\n") and sys.stdout.flush(),
    )
)
sys.exit(code)
"""


async def test_connections_that_say_nothing_do_not_take_up_all_there_are() -> None:
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(list(Path("/proc/self/fd").iterdir())) + 40  # noqa: ASYNC240  # no disk
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
    try:
        gateway = make_gateway()
        async with serving(gateway, drain_timeout=1) as (address, _):
            port = int(address.rpartition(":")[2])
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(few)]
            async with httpx2.AsyncClient(base_url=address) as client:
                assert (await client.post(CHAT, json=chat())).status_code == 200
            for _, writer in silent:
                writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_finishes_its_stream_and_exits_with_0(number: signal.Signals) -> None:
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS], cwd=tests, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None:
            raise RuntimeError("no output of the process")
        address = process.stdout.readline().strip()
        with (
            httpx2.Client(base_url=address, timeout=20) as client,
            client.stream("POST", CHAT, json=chat(stream=True)) as stream,
        ):
            pieces = stream.iter_text()
            text = next(pieces)
            process.send_signal(number)
            text += "".join(pieces)
        _, errors = process.communicate(timeout=30)
    assert "after" in text
    assert chunks(text)[-1]["choices"][0]["finish_reason"] == "stop"
    assert process.returncode == 0, errors
    assert errors == ""
