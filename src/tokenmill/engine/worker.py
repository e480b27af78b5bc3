"""The engine on its own thread: all torch and OpenMP work happens there, and it sleeps while idle."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from typing import Protocol

from tokenmill.core.bus import Bus
from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.errors import EngineStopped, GenerationFailed, TokenmillError
from tokenmill.core.events import EngineReady, LoadProgress, PeaksMeasured, RequestRejected
from tokenmill.core.flags import ModelFlags
from tokenmill.core.request import GenerateRequest
from tokenmill.engine.backend import TORCH
from tokenmill.engine.core import EngineCore, Output
from tokenmill.engine.grammar.compiler import GrammarCompiler
from tokenmill.engine.grammar.matcher import Matcher
from tokenmill.engine.limits import Limits
from tokenmill.engine.load import LoadedModel, MemoryReport, load_model
from tokenmill.hardware.allocator import share_one_heap
from tokenmill.hardware.peaks import measure_peaks
from tokenmill.models.chat import ChatTemplate, load_chat_template
from tokenmill.models.source import ModelSource
from tokenmill.models.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)

STOP_S = 10.0


class Sink(Protocol):
    """Where a request's outputs go."""

    def deliver(self, outputs: list[Output]) -> None:
        """Takes all of one step's outputs for this sink. Called on the engine thread; must not block."""
        ...


# A new request with its matchers, or the id of one to abort.
Message = tuple[GenerateRequest, Sink, Items[Matcher]] | str


class EngineWorker:
    """Loads a model and serves requests until stopped.

    After `start` has returned, `tokenizer`, `chat_template`, `memory` and `max_model_len` are set.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    memory: MemoryReport
    max_model_len: int
    num_kv_blocks: int

    def __init__(
        self,
        source: ModelSource,
        flags: ModelFlags,
        bus: Bus,
        *,
        name: str,
        instance: str = "0",
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.vocab_size = source.spec.vocab_size
        self.hidden = source.spec.hidden
        self.pooling = flags.pooling or source.spec.pooling
        self._source = source
        self._flags = flags
        self._bus = bus
        self.clock = clock or SystemClock()
        self._instance = instance
        self._changed = threading.Condition()
        self._inbox: list[Message] = []
        self._sinks: dict[str, Sink] = {}
        self._stopping = False
        self._ended = False
        self._watchers: list[Callable[[], None]] = []
        self._last_turn = self.clock.monotonic()
        self._core: EngineCore | None = None
        self._grammars: GrammarCompiler | None = None
        self._error: BaseException | None = None
        self._tokenized = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"engine-{instance}", daemon=True)

    def start(self) -> None:
        """Loads and warms; returns when the engine takes requests.

        Raises:
            TokenmillError: what went wrong while loading.
        """
        share_one_heap()
        self._thread.start()
        try:
            # Beside the weights: the one reads files and holds the interpreter, the other computes.
            files = self._source.tokenizer_files
            self.tokenizer = load_tokenizer(files, self.vocab_size)
            self._grammars = GrammarCompiler(self.tokenizer, self._end_ids)
            names = self.tokenizer.bos_token, self.tokenizer.eos_token
            self.chat_template = load_chat_template(files, *names)
        except BaseException as fault:
            self._error = self._error or fault
            if not isinstance(fault, Exception):  # an interrupt does not wait for the weights
                raise
        finally:
            self._tokenized.set()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def matchers(self, request: GenerateRequest) -> Future[list[Matcher]]:
        """Compiles a request's grammar on a thread of its own: what `submit` needs of a request with one.

        What the future raises refuses the request. Cancelling it leaves the queue.
        """
        params = request.sampling
        if params.grammar is None or self._grammars is None:
            raise ValueError("the request has no grammar, or the engine has not started")
        found = self._grammars.matchers(params.grammar, params.n)
        found.add_done_callback(lambda done: self._tell_refused(request, done))
        return found

    def drop_matchers(self) -> None:
        """Fails whoever waits for a grammar, or asks for one, with EngineStopped."""
        if self._grammars is not None:
            self._grammars.stop()

    def reject(self, request: GenerateRequest, refusal: TokenmillError) -> None:
        """Tells that a request has ended before the engine took it."""
        self._bus.publish(
            RequestRejected(
                at=self.clock.monotonic(),
                model=self.name,
                instance=self._instance,
                request_id=request.request_id,
                tenant=request.tenant,
                code=refusal.code,
            )
        )

    def submit(self, request: GenerateRequest, sink: Sink, matchers: Items[Matcher] = ()) -> None:
        """Queues a request; what becomes of it, refusal included, arrives at the sink.

        Args:
            matchers: what `matchers` gave for it; none where it has no grammar.

        Raises:
            EngineStopped: the engine no longer runs.
        """
        self._send((request, sink, matchers))

    def abort(self, request_id: str) -> None:
        """Drops a request at the next step; nothing more is delivered for it then."""
        try:
            self._send(request_id)
        except EngineStopped:
            return  # it ended with the engine

    def stop(self) -> None:
        """Ends the thread; live requests get `EngineStopped`.

        A thread that hangs in a step is left behind after `STOP_S`: it must not keep the process alive.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._grammars is not None:
            self._grammars.close()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                log.error("the engine hangs; it is left behind")

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Calls `tell` once the engine can never serve again: on its thread, or at once if it has ended."""
        with self._changed:
            if not self._ended:
                self._watchers.append(tell)
                return
        tell()

    @property
    def alive(self) -> bool:
        """Takes requests: started, not stopped, not broken."""
        return self._ready.is_set() and not self._stopping and self._error is None

    @property
    def load(self) -> tuple[int, int]:
        """Sequences (running, waiting). Requests nobody has looked at, or whose grammar is compiled, wait."""
        core = self._core
        if core is None:
            return (0, 0)
        return len(core.scheduler.running), len(core.scheduler.waiting) + len(self._inbox) + self._compiling

    @property
    def _compiling(self) -> int:
        """Requests that wait for their grammar."""
        return 0 if self._grammars is None else self._grammars.pending

    @property
    def kv_blocks_active(self) -> int:
        return self._core.scheduler.pool.active if self._core else 0

    def stalled_s(self) -> float:
        """Seconds since the last finished turn of the loop while there is work; 0 when idle."""
        busy = bool(self._inbox) or (self._core is not None and self._core.has_work)
        return max(0.0, self.clock.monotonic() - self._last_turn) if busy else 0.0

    def _send(self, message: Message) -> None:
        with self._changed:
            if not self.alive:
                raise EngineStopped("the engine has stopped")
            if not self._inbox and not (self._core and self._core.has_work):
                self._last_turn = self.clock.monotonic()
            self._inbox.append(message)
            self._changed.notify()

    def _main(self) -> None:
        try:
            self._core = self._load()
            self._ready.set()
            if self._error is None:
                self._serve(self._core)
        except BaseException as fault:
            if self._ready.is_set():
                log.critical("the engine has stopped", exc_info=fault)
            self._error = self._error or fault
            self._fail_all()
        finally:
            with self._changed:
                self._stopping = self._ended = True
                left, self._inbox = self._inbox, []
            self._ready.set()
            self._end_all(left)
            for tell in self._watchers:
                tell()

    def _fail_all(self) -> None:
        """After a crash: each accepted request gets its one outcome, as far as the core still can."""
        if self._core is not None:
            with contextlib.suppress(Exception):
                self._deliver(self._core.fail_all(lambda: EngineStopped("the engine has stopped")))

    def _load(self) -> EngineCore:
        began = self.clock.monotonic()

        def told(phase: str, size: int) -> None:
            nonlocal began
            now = self.clock.monotonic()
            self._bus.publish(
                LoadProgress(
                    at=now,
                    model=self.name,
                    instance=self._instance,
                    phase=phase,
                    source=self._source.name,
                    bytes=size,
                    seconds=now - began,
                )
            )
            began = now

        loaded = load_model(self._source, self._flags, told, self._encode)
        self.memory = loaded.report
        limits = Limits(self.vocab_size, loaded.plan.max_model_len, loaded.plan.kv_tokens)
        self.max_model_len = limits.longest
        self.num_kv_blocks = loaded.plan.num_kv_blocks
        self._tokenized.wait()
        if self._error is not None:
            raise self._error
        if loaded.kernels != TORCH:
            self._tell_peaks(loaded.kernels)
        self._tell_ready(loaded)
        return EngineCore(
            loaded.program,
            limits,
            self._flags,
            vocabulary=self.tokenizer,
            eos_ids=self._end_ids,
            bus=self._bus,
            clock=self.clock,
            model=self.name,
            instance=self._instance,
        )

    def _encode(self, text: str) -> Items[int]:
        """Tokens of a text, once the tokenizer is there; none where it could not be read."""
        self._tokenized.wait()
        return self.tokenizer.encode(text, add_special=True) if self._error is None else []

    @property
    def _end_ids(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self.tokenizer.eos_ids, *self._source.spec.eos_ids)))

    def _tell_peaks(self, isa: str) -> None:
        """Measured once a machine, and only now that no other thread loads anything."""
        peaks = measure_peaks()
        if peaks is not None:
            self._bus.publish(
                PeaksMeasured(
                    at=self.clock.monotonic(),
                    model=self.name,
                    instance=self._instance,
                    isa=isa,
                    threads=peaks.threads,
                    read_bytes_per_second=peaks.read_bytes_per_second,
                    int8_multiply_adds_per_second=peaks.int8_multiply_adds_per_second,
                )
            )

    def _tell_ready(self, loaded: LoadedModel) -> None:
        self._bus.publish(
            EngineReady(
                at=self.clock.monotonic(),
                model=self.name,
                instance=self._instance,
                block_size=loaded.plan.block_size,
                num_kv_blocks=loaded.plan.num_kv_blocks,
                dtype=loaded.matrices,
                kernels=loaded.kernels,
                max_model_len=loaded.plan.max_model_len,
                planned_bytes=loaded.report.planned,
                rss_bytes=loaded.report.measured,
            )
        )

    def _serve(self, core: EngineCore) -> None:
        while True:
            messages, idle_s, lock_s = self._next(core)
            if self._stopping:
                self._deliver(core.fail_all(lambda: EngineStopped("the engine is stopping")))
                self._end_all(messages)
                return
            self._apply(core, messages)
            # Also after an abort that leaves nothing to do, so that the gauges learn of it.
            outputs = core.step(idle_s=idle_s, lock_s=lock_s, compiling=self._compiling)
            if core.progressed:  # a loop that turns and gets nothing done is as stuck as one that hangs
                self._last_turn = self.clock.monotonic()
            self._deliver(outputs)

    def _next(self, core: EngineCore) -> tuple[list[Message], float, float]:
        """Messages since the last turn; waits while there is nothing at all to do."""
        asked = self.clock.monotonic()
        with self._changed:
            locked = self.clock.monotonic()
            idle_s = 0.0
            while not (self._inbox or core.has_work or self._stopping):
                self._changed.wait()
                idle_s = self.clock.monotonic() - locked
            messages, self._inbox = self._inbox, []
        return messages, idle_s, locked - asked

    def _apply(self, core: EngineCore, messages: Iterable[Message]) -> None:
        for message in messages:
            if isinstance(message, str):
                core.abort(message)
                self._sinks.pop(message, None)
                continue
            request, sink, matchers = message
            try:
                core.add(request, matchers)
                self._sinks[request.request_id] = sink
            except Exception as fault:
                refusal = fault if isinstance(fault, TokenmillError) else _unforeseen(request, fault)
                self.reject(request, refusal)
                self._hand_over(sink, [Output(request.request_id, error=refusal, done=True)])

    def _tell_refused(self, request: GenerateRequest, done: Future[list[Matcher]]) -> None:
        fault = None if done.cancelled() else done.exception()
        if isinstance(fault, TokenmillError):
            self.reject(request, fault)

    def _deliver(self, outputs: Iterable[Output]) -> None:
        by_sink: dict[int, tuple[Sink, list[Output]]] = {}
        for output in outputs:
            sink = self._sinks.get(output.request_id)
            if sink is not None:
                by_sink.setdefault(id(sink), (sink, []))[1].append(output)
                if output.done:
                    del self._sinks[output.request_id]
        for sink, theirs in by_sink.values():
            self._hand_over(sink, theirs)

    def _hand_over(self, sink: Sink, outputs: list[Output]) -> None:
        """A sink that breaks loses its outputs; it does not take the engine with it."""
        try:
            sink.deliver(outputs)
        except Exception:
            log.exception("a receiver of outputs failed; its requests are dropped")
            for output in outputs:
                if self._core is not None:
                    self._core.abort(output.request_id)
                self._sinks.pop(output.request_id, None)

    def _end_all(self, messages: Iterable[Message]) -> None:
        """Tells everyone who still waits that the engine is gone."""
        left = defaultdict(list)
        sinks = {id(sink): sink for sink in self._sinks.values()}
        for request_id, sink in self._sinks.items():
            left[id(sink)].append(request_id)
        for message in messages:
            if not isinstance(message, str):
                sinks[id(message[1])] = message[1]
                left[id(message[1])].append(message[0].request_id)
        self._sinks.clear()
        for key, ids in left.items():
            gone = EngineStopped("the engine has stopped")
            self._hand_over(sinks[key], [Output(request_id, error=gone, done=True) for request_id in ids])


def _unforeseen(request: GenerateRequest, fault: Exception) -> GenerationFailed:
    log.error("request %s could not be taken", request.request_id, exc_info=fault)
    return GenerationFailed("the engine could not take this request")
