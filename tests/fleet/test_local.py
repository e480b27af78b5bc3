"""The built-in engine as a replica, over an engine that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tokenmill.core.clock import ManualClock
from tokenmill.core.delta import Delta
from tokenmill.core.errors import (
    DeadlineExceeded,
    Draining,
    EngineStopped,
    GenerationFailed,
    InvalidRequest,
    TokenmillError,
)
from tokenmill.core.request import GenerateRequest, Grammar, SamplingParams
from tokenmill.engine.core import Output
from tokenmill.engine.grammar.matcher import Matcher
from tokenmill.engine.worker import EngineWorker, Sink
from tokenmill.fleet.local import LocalReplica

REQUEST = GenerateRequest(request_id="r", prompt_ids=(1,))


class ScriptedWorker:
    """Records what it is told; the test delivers."""

    max_model_len = 100
    num_kv_blocks = 10
    kv_blocks_active = 3
    alive = True
    load = (1, 2)

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.aborted: list[str] = []
        self.rejected: list[str] = []
        self.clock = ManualClock()
        self.compiling: Future[list[Matcher]] = Future()
        self.stalled = 0.0
        self.stopped = False
        self.watchers: list[Callable[[], None]] = []

    def submit(self, request: GenerateRequest, sink: Sink, matchers: Sequence[Matcher] = ()) -> None:
        self.sinks[request.request_id] = sink

    def matchers(self, request: GenerateRequest) -> Future[list[Matcher]]:
        return self.compiling

    def drop_matchers(self) -> None:
        if not self.compiling.done():
            self.compiling.set_exception(EngineStopped("stopped"))

    def reject(self, request: GenerateRequest, refusal: TokenmillError) -> None:
        self.rejected.append(refusal.code)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def stop(self) -> None:
        self.stopped = True

    def stalled_s(self) -> float:
        return self.stalled

    def when_ended(self, tell: Callable[[], None]) -> None:
        self.watchers.append(tell)

    def say(self, *outputs: Output) -> None:
        for output in outputs:
            self.sinks[output.request_id].deliver([output])


@pytest.fixture
def worker() -> ScriptedWorker:
    return ScriptedWorker()


@pytest.fixture
def replica(worker: ScriptedWorker) -> LocalReplica:
    return LocalReplica(cast("EngineWorker", worker), stall_timeout=5)


def text(value: str, *, done: bool = False) -> Output:
    return Output("r", delta=Delta(text=value), done=done)


async def started(replica: LocalReplica, worker: ScriptedWorker) -> asyncio.Task[list[Delta]]:
    """A task that collects a request's deltas, once the engine has the request."""

    async def collect() -> list[Delta]:
        return [delta async for delta in replica.generate(REQUEST)]

    task = asyncio.create_task(collect())
    while not worker.sinks:
        await asyncio.sleep(0)
    return task


async def test_deltas_come_in_order_until_done(replica: LocalReplica, worker: ScriptedWorker) -> None:
    task = await started(replica, worker)
    await asyncio.to_thread(worker.say, text("a"), text("b"), text("c", done=True))
    assert [delta.text for delta in await task] == ["a", "b", "c"]
    assert worker.aborted == []


async def test_nothing_is_dispatched_before_the_first_step(
    replica: LocalReplica, worker: ScriptedWorker
) -> None:
    stream = replica.generate(REQUEST)
    assert not worker.sinks
    await stream.aclose()
    assert not worker.sinks


async def test_a_failure_is_raised(replica: LocalReplica, worker: ScriptedWorker) -> None:
    task = await started(replica, worker)
    await asyncio.to_thread(worker.say, Output("r", error=GenerationFailed("broken"), done=True))
    with pytest.raises(GenerationFailed):
        await task
    assert worker.aborted == []


async def test_closing_the_stream_aborts_the_request(replica: LocalReplica, worker: ScriptedWorker) -> None:
    async with aclosing(replica.generate(REQUEST)) as stream:
        first: Any = asyncio.ensure_future(anext(stream))
        while not worker.sinks:
            await asyncio.sleep(0)
        worker.say(text("a"))
        assert (await first).text == "a"
    assert worker.aborted == ["r"]


async def test_cancelling_the_reader_aborts_the_request(
    replica: LocalReplica, worker: ScriptedWorker
) -> None:
    task = await started(replica, worker)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worker.aborted == ["r"]


async def test_what_arrives_after_the_end_is_dropped(replica: LocalReplica, worker: ScriptedWorker) -> None:
    task = await started(replica, worker)
    task.cancel()
    await asyncio.wait([task])
    worker.say(text("late"))
    await asyncio.sleep(0)


WITH_GRAMMAR = GenerateRequest(
    request_id="r", prompt_ids=(1,), sampling=SamplingParams(grammar=Grammar("regex", "a"))
)


async def test_a_grammar_is_compiled_before_the_engine_sees_the_request(
    replica: LocalReplica, worker: ScriptedWorker
) -> None:
    first: Any = asyncio.ensure_future(anext(replica.generate(WITH_GRAMMAR)))
    await asyncio.sleep(0)
    assert not worker.sinks
    await asyncio.to_thread(worker.compiling.set_result, [])
    while not worker.sinks:
        await asyncio.sleep(0)
    worker.say(text("a", done=True))
    assert (await first).text == "a"


async def test_a_grammar_that_cannot_be_used_never_reaches_the_engine(
    replica: LocalReplica, worker: ScriptedWorker
) -> None:
    worker.compiling.set_exception(InvalidRequest("broken", code="invalid_grammar"))
    with pytest.raises(InvalidRequest):
        await anext(replica.generate(WITH_GRAMMAR))
    assert not worker.sinks
    assert worker.aborted == []
    await replica.drain(60)  # and nothing is left to wait for


async def test_leaving_while_the_grammar_waits_cancels_it(
    replica: LocalReplica, worker: ScriptedWorker
) -> None:
    task: Any = asyncio.ensure_future(anext(replica.generate(WITH_GRAMMAR)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worker.compiling.cancelled()
    assert not worker.sinks


async def test_a_grammar_that_is_not_compiled_by_the_deadline_ends_the_request(
    replica: LocalReplica, worker: ScriptedWorker
) -> None:
    worker.clock.now = 100.0
    late = replace(WITH_GRAMMAR, deadline=99.0)
    with pytest.raises(DeadlineExceeded):
        await anext(replica.generate(late))
    assert worker.compiling.cancelled()
    assert worker.rejected == ["timeout"]
    assert not worker.sinks
    await replica.drain(60)


async def test_a_grammar_in_time_is_taken(replica: LocalReplica, worker: ScriptedWorker) -> None:
    first: Any = asyncio.ensure_future(anext(replica.generate(replace(WITH_GRAMMAR, deadline=60.0))))
    await asyncio.sleep(0)
    worker.compiling.set_result([])
    while not worker.sinks:
        await asyncio.sleep(0)
    worker.say(text("a", done=True))
    assert (await first).text == "a"


@pytest.mark.parametrize("compiled", [False, True], ids=["still in work", "at the last moment"])
async def test_draining_cuts_off_what_waits_for_its_grammar(
    replica: LocalReplica, worker: ScriptedWorker, compiled: bool
) -> None:
    task: Any = asyncio.ensure_future(anext(replica.generate(WITH_GRAMMAR)))
    await asyncio.sleep(0)
    if compiled:
        worker.drop_matchers = lambda: worker.compiling.set_result([])  # type: ignore[method-assign]  # too late
    await replica.drain(0)
    with pytest.raises(EngineStopped):
        await task
    assert worker.compiling.done()
    assert not worker.sinks  # the engine never learns of it


async def test_draining_waits_for_the_running_and_refuses_the_new(
    replica: LocalReplica, worker: ScriptedWorker
) -> None:
    task = await started(replica, worker)
    drained = asyncio.create_task(replica.drain(60))
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        await anext(replica.generate(GenerateRequest(request_id="new", prompt_ids=(1,))))
    assert not replica.stats().ready
    worker.say(text("end", done=True))
    await drained
    assert [delta.text for delta in await task] == ["end"]


async def test_draining_cuts_what_does_not_end_in_time(replica: LocalReplica, worker: ScriptedWorker) -> None:
    task = await started(replica, worker)
    await replica.drain(0)
    with pytest.raises(EngineStopped):
        await task
    assert worker.aborted == ["r"]


async def test_the_end_of_the_engine_is_told(replica: LocalReplica, worker: ScriptedWorker) -> None:
    waiting = asyncio.create_task(replica.wait_ended())
    while not worker.watchers:
        await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.to_thread(worker.watchers[0])
    await waiting


async def test_closing_stops_the_engine(replica: LocalReplica, worker: ScriptedWorker) -> None:
    await replica.close()
    assert worker.stopped


def test_ready_means_alive_and_making_progress(replica: LocalReplica, worker: ScriptedWorker) -> None:
    stats = replica.stats()
    assert (stats.ready, stats.running, stats.waiting) == (True, 1, 2)
    worker.stalled = 6
    assert not replica.stats().ready
    assert "no step finished" in replica.stats().reason
    worker.stalled = 0
    worker.alive = False
    assert not replica.stats().ready
