"""The built-in engine in this process, as a replica."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from tokenmill.core.delta import Delta
from tokenmill.core.errors import (
    DeadlineExceeded,
    Draining,
    EngineStopped,
    GenerationFailed,
    TokenmillError,
)
from tokenmill.core.request import GenerateRequest
from tokenmill.engine.core import Output
from tokenmill.engine.grammar.matcher import Matcher
from tokenmill.engine.worker import EngineWorker
from tokenmill.fleet.replica import ReplicaStats


class LocalReplica:
    """Carries requests to an engine's thread and deltas back to the event loop, once a step.

    Args:
        stall_timeout: seconds of work without a finished step after which it is not ready.
    """

    def __init__(self, worker: EngineWorker, *, stall_timeout: float = 30.0) -> None:
        self._worker = worker
        self._stall_timeout = stall_timeout
        self._queues: dict[str, asyncio.Queue[Output]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False
        # Nothing is submitted any more: whoever still has no matchers ends without them.
        self._dropped = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if self._draining:
            raise Draining("the server is stopping and takes no new requests")
        if request.request_id in self._queues:
            raise GenerationFailed("a request with this id is already running")
        self._loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Output] = asyncio.Queue()
        self._queues[request.request_id] = queue
        self._idle.clear()
        submitted = ended = False
        try:
            matchers = await self._matchers(request)
            self._worker.submit(request, self, matchers)
            submitted = True
            while not ended:
                output = await queue.get()
                ended = output.done
                if output.error is not None:
                    raise output.error
                if output.delta is not None:
                    yield output.delta
        finally:
            del self._queues[request.request_id]
            if not self._queues:
                self._idle.set()
            if submitted and not ended:
                self._worker.abort(request.request_id)

    async def _matchers(self, request: GenerateRequest) -> Sequence[Matcher]:
        """A request's compiled grammar, within its deadline.

        Raises:
            TokenmillError: it is refused, and has been counted as such.
        """
        if request.sampling.grammar is None:
            return ()
        compiled = asyncio.wrap_future(self._worker.matchers(request))
        refusal: TokenmillError
        try:
            matchers = await asyncio.wait_for(compiled, self._left_s(request))
        except TimeoutError:
            refusal = DeadlineExceeded("the request's deadline has passed")
        else:
            if not self._dropped:
                return matchers
            refusal = EngineStopped("the server stopped before the answer was complete")
        self._worker.reject(request, refusal)
        raise refusal

    def _left_s(self, request: GenerateRequest) -> float | None:
        return None if request.deadline is None else request.deadline - self._worker.clock.monotonic()

    def deliver(self, outputs: list[Output]) -> None:
        """Called on the engine thread with one step's outputs."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
                self._loop.call_soon_threadsafe(self._dispatch, outputs)

    def stats(self) -> ReplicaStats:
        running, waiting = self._worker.load
        stalled = self._worker.stalled_s()
        return ReplicaStats(
            ready=not (reason := self._unready(stalled)),
            reason=reason,
            running=running,
            waiting=waiting,
            stalled_s=stalled,
            max_model_len=self._worker.max_model_len,
            kv_blocks_total=self._worker.num_kv_blocks,
            kv_blocks_active=self._worker.kv_blocks_active,
        )

    async def wait_ended(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ended.set)

        self._worker.when_ended(tell)
        await ended.wait()

    async def drain(self, timeout: float) -> None:
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            self._dropped = True
            self._worker.drop_matchers()
            for request_id, queue in self._queues.items():
                gone = EngineStopped("the server stopped before the answer was complete")
                queue.put_nowait(Output(request_id, error=gone, done=True))
                self._worker.abort(request_id)

    async def close(self) -> None:
        self._draining = True
        await asyncio.to_thread(self._worker.stop)

    def _unready(self, stalled: float) -> str:
        if self._draining:
            return "draining"
        if not self._worker.alive:
            return "the engine is not running"
        if stalled > self._stall_timeout:
            return f"no step finished for {stalled:.0f} s while there is work"
        return ""

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            queue = self._queues.get(output.request_id)
            if queue is not None:
                queue.put_nowait(output)
