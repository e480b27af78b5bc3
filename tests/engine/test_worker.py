"""The engine's thread: loads, serves several sinks, and always tells everyone how it ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from support.tiny_models import save_tiny, save_tokenizer
from tokenmill.core.bus import Bus
from tokenmill.core.errors import (
    EngineStopped,
    InsufficientMemory,
    InvalidRequest,
    ModelFileError,
    Overloaded,
)
from tokenmill.core.events import (
    EngineReady,
    Event,
    LoadProgress,
    PeaksMeasured,
    RequestRejected,
    StepCompleted,
)
from tokenmill.core.flags import ModelFlags
from tokenmill.core.request import GenerateRequest, Grammar, SamplingParams
from tokenmill.engine import worker as engine_worker
from tokenmill.engine.core import EngineCore, Output
from tokenmill.engine.grammar import compiler
from tokenmill.engine.grammar.checked_build import CheckedBuild
from tokenmill.engine.grammar.matcher import Matcher
from tokenmill.engine.worker import EngineWorker
from tokenmill.hardware.peaks import Peaks
from tokenmill.models.source import open_model

FLAGS = ModelFlags(dtype="float32", num_kv_blocks=32, max_num_seqs=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", made)
    save_tokenizer(made)
    return made


class Collector:
    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.done = threading.Event()

    def deliver(self, outputs: list[Output]) -> None:
        self.outputs += outputs
        if any(output.done for output in outputs):
            self.done.set()


def request(name: str, length: int = 5, **sampling: object) -> GenerateRequest:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **sampling})  # type: ignore[arg-type]  # by name
    return GenerateRequest(request_id=name, prompt_ids=tuple(range(3, 3 + length)), sampling=params)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def worker(folder: Path, events: list[Event]) -> Iterator[EngineWorker]:
    bus = Bus()
    bus.subscribe(events.append)
    made = EngineWorker(open_model(folder), FLAGS, bus, name="tiny")
    made.start()
    yield made
    made.stop()


def test_it_answers_and_each_sink_gets_its_own(worker: EngineWorker) -> None:
    sinks = [Collector() for _ in range(3)]
    for number, sink in enumerate(sinks):
        worker.submit(request(f"r{number}"), sink)
    for number, sink in enumerate(sinks):
        assert sink.done.wait(60)
        assert {output.request_id for output in sink.outputs} == {f"r{number}"}
        assert sum(len(o.delta.token_ids) for o in sink.outputs if o.delta) == 6


def test_torch_work_happens_on_the_engine_thread_alone(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    linear = torch.nn.functional.linear

    def watched(*args: torch.Tensor) -> torch.Tensor:
        threads.add(threading.current_thread().name)
        return linear(*args)

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    sink = Collector()
    worker.submit(request("r"), sink)
    assert sink.done.wait(60)
    assert threads == {"engine-0"}


def test_what_it_is_told_while_loading(worker: EngineWorker, events: list[Event]) -> None:
    phases = [event.phase for event in events if isinstance(event, LoadProgress)]
    assert phases == ["read", "pool", "warm"]
    ready = [event for event in events if isinstance(event, EngineReady)]
    assert [(event.num_kv_blocks, event.dtype, event.max_model_len) for event in ready] == [
        (32, "float32", 1024)
    ]
    assert worker.memory.planned > 0
    assert worker.chat_template is not None


def started(folder: Path, flags: ModelFlags) -> list[Event]:
    bus, events = Bus(), list[Event]()
    bus.subscribe(events.append)
    worker = EngineWorker(open_model(folder), flags, bus, name="tiny")
    worker.start()
    worker.stop()
    return events


@pytest.mark.parametrize("peaks", [Peaks(2e10, 4e11, 3), None])
def test_the_machines_peaks_are_told_before_it_is_ready(
    folder: Path, monkeypatch: pytest.MonkeyPatch, peaks: Peaks | None
) -> None:
    monkeypatch.setattr(engine_worker, "measure_peaks", lambda: peaks)
    events = started(folder, ModelFlags(num_kv_blocks=32, max_num_seqs=4, quantization="none"))
    told = [event for event in events if isinstance(event, PeaksMeasured)]
    ready = next(event for event in events if isinstance(event, EngineReady))
    if peaks is None:
        assert told == []
        return
    (event,) = told
    assert (event.isa, event.threads) == (ready.kernels, 3)
    assert (event.read_bytes_per_second, event.int8_multiply_adds_per_second) == (2e10, 4e11)
    assert events.index(event) < events.index(ready)


def test_peaks_are_not_measured_for_operators_that_count_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_worker, "measure_peaks", lambda: Peaks(2e10, 4e11, 3))
    assert not [event for event in started(folder, FLAGS) if isinstance(event, PeaksMeasured)]


def test_a_refusal_arrives_at_the_sink(worker: EngineWorker, events: list[Event]) -> None:
    sink = Collector()
    worker.submit(request("long", length=9, max_tokens=100_000), sink)
    assert sink.done.wait(60)
    assert [output.error.code for output in sink.outputs if output.error] == ["context_length_exceeded"]
    assert [event.code for event in events if isinstance(event, RequestRejected)] == [
        "context_length_exceeded"
    ]


def test_a_grammar_that_is_refused_is_counted_whatever_the_reason(
    worker: EngineWorker, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = worker.matchers(request("bad", grammar=Grammar("regex", "a(b")))
    assert isinstance(refused.exception(60), InvalidRequest)
    monkeypatch.setattr(compiler, "MAX_PENDING", 0)
    full = worker.matchers(request("many", grammar=Grammar("regex", "ab")))
    assert isinstance(full.exception(60), Overloaded)
    worker.drop_matchers()
    dropped = worker.matchers(request("late", grammar=Grammar("regex", "ab")))
    assert isinstance(dropped.exception(60), EngineStopped)
    told = [(event.request_id, event.code) for event in events if isinstance(event, RequestRejected)]
    assert told == [("bad", "invalid_grammar"), ("many", "overloaded"), ("late", "engine_stopped")]


def test_who_waits_for_a_grammar_is_waiting_in_load_and_events(
    worker: EngineWorker, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(CheckedBuild, "build", lambda *_: go_on.wait(60))
    waiting = [worker.matchers(request(name, grammar=Grammar("regex", "ab"))) for name in "abc"]
    assert worker.load == (0, 3)
    sink = Collector()
    worker.submit(request("r"), sink)
    assert sink.done.wait(60)
    assert {event.waiting for event in events if isinstance(event, StepCompleted)} == {3}
    assert all(future.cancel() for future in waiting)
    assert worker.load == (0, 0)
    go_on.set()


def test_an_aborted_request_leaves_no_trace(worker: EngineWorker) -> None:
    gone, after = Collector(), Collector()
    worker.submit(request("gone", max_tokens=400), gone)
    worker.abort("gone")
    worker.submit(request("after"), after)
    assert after.done.wait(60)
    assert not gone.done.is_set()
    assert worker.load == (0, 0)
    assert worker.kv_blocks_active == 0


def test_stopping_tells_those_who_wait(worker: EngineWorker) -> None:
    sink = Collector()
    worker.submit(request("cut", max_tokens=400), sink)
    worker.stop()
    assert sink.done.wait(60)
    assert isinstance(sink.outputs[-1].error, EngineStopped)
    with pytest.raises(EngineStopped):
        worker.submit(request("late"), sink)
    assert not worker.alive


def test_a_fault_of_the_engine_itself_reaches_everyone(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: EngineCore, **_: object) -> list[Output]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(EngineCore, "step", broken)
    sink = Collector()
    worker.submit(request("r"), sink)
    assert sink.done.wait(60)
    assert isinstance(sink.outputs[-1].error, EngineStopped)
    told = threading.Event()
    worker.when_ended(told.set)
    assert told.wait(60)
    worker.stop()
    assert not worker.alive


def test_a_fault_while_taking_a_request_is_that_request_s_alone(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = EngineCore.add

    def broken(self: EngineCore, request: GenerateRequest, matchers: Sequence[Matcher]) -> None:
        if request.request_id == "bad":
            raise RuntimeError("a bug")
        add(self, request, matchers)

    monkeypatch.setattr(EngineCore, "add", broken)
    bad, good = Collector(), Collector()
    worker.submit(request("bad"), bad)
    worker.submit(request("good"), good)
    assert bad.done.wait(60) and good.done.wait(60)
    assert [o.error.code for o in bad.outputs if o.error] == ["generation_failed"]
    assert not [o for o in good.outputs if o.error]


def test_a_hanging_engine_does_not_keep_stop_waiting(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr("tokenmill.engine.worker.STOP_S", 0.05)

    def hang(self: EngineCore, **_: object) -> list[Output]:
        go_on.wait(60)
        return []

    monkeypatch.setattr(EngineCore, "step", hang)
    worker.submit(request("r"), Collector())
    worker.stop()
    assert not worker.alive
    go_on.set()


def test_a_model_that_does_not_fit_says_so(folder: Path) -> None:
    flags = ModelFlags(kv_cache_memory_bytes=1 << 50)
    worker = EngineWorker(open_model(folder), flags, Bus(), name="tiny")
    with pytest.raises(InsufficientMemory):
        worker.start()
    assert not worker.alive


def test_a_broken_tokenizer_says_so(folder: Path, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    worker = EngineWorker(open_model(tmp_path), FLAGS, Bus(), name="tiny")
    with pytest.raises(ModelFileError):
        worker.start()
    assert not worker.alive


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_smallest_pools_warm_and_serve(folder: Path, blocks: int) -> None:
    flags = ModelFlags(dtype="float32", block_size=16, num_kv_blocks=blocks)
    worker = EngineWorker(open_model(folder), flags, Bus(), name="tiny")
    worker.start()
    sink = Collector()
    worker.submit(request("r"), sink)
    assert sink.done.wait(60)
    assert [o.error for o in sink.outputs if o.error] == []
    worker.stop()


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_tokens": 3, "ignore_eos": False},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 0.5, "temperature": 1.0},
        {"repetition_penalty": 1.2},
        {"logit_bias": {30: 100.0}},
        {"logprobs": 3},
        {"temperature": 0.8, "top_k": 5},
        {"temperature": 0.8, "top_p": 0.7, "min_p": 0.05},
        {"stop_token_ids": (7,), "min_tokens": 2},
        {"n": 3, "temperature": 1.0, "seed": 1, "repetition_penalty": 1.1, "logit_bias": {5: -100.0}},
    ],
    ids=str,
)
def test_every_parameter_works_on_what_the_kernels_return(
    worker: EngineWorker, sampling: dict[str, object]
) -> None:
    sink = Collector()
    worker.submit(request("r", 5, **sampling), sink)
    assert sink.done.wait(60)
    assert [output.error for output in sink.outputs if output.error] == []
    assert sum(o.delta.finish_reason is not None for o in sink.outputs if o.delta) == sampling.get("n", 1)
