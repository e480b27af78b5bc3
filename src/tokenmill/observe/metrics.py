"""Metrics: a synchronous, lossless subscriber of the event bus, and the page it is read from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, get_args

from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.events import (
    EngineReady,
    Event,
    HttpAnswered,
    LoadProgress,
    Outcome,
    PeaksMeasured,
    Preempted,
    PrefixLookup,
    RequestAccepted,
    RequestEnded,
    RequestRejected,
    StepCompleted,
)
from tokenmill.observe import exposition
from tokenmill.observe.kernel_work import KernelWork
from tokenmill.observe.names import NAMES
from tokenmill.observe.series import Histogram, Series, Trace, Values, make_series

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}


class ReplicaGauges(Protocol):
    """What a replica says about itself at this moment."""

    @property
    def ready(self) -> bool: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def stalled_s(self) -> float: ...


class Metrics:
    """Counts events of one model's engine and of the door before it. Safe from any thread."""

    def __init__(self, model: str, instance: str, *, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._model = model
        self._to_wall = clock.wall() - clock.monotonic()
        self._lock = threading.Lock()
        self._series: dict[str, Series] = {name.name: make_series(name) for name in NAMES}
        self._instance = instance
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            StepCompleted: self._step,
            RequestAccepted: self._accepted,
            RequestEnded: self._ended,
            RequestRejected: self._rejected,
            PrefixLookup: self._lookup,
            Preempted: self._preempted,
            HttpAnswered: self._answered,
            LoadProgress: self._loading,
            EngineReady: self._engine_ready,
            PeaksMeasured: self._peaks_measured,
        }
        for outcome in get_args(Outcome):
            self._add("tokenmill_engine_ended", 0, outcome)
        for reason in ("stop", "length", "error", "abort"):
            self._add("tokenmill_engine_finished", 0, reason)
        # The series a step touches; everything else is looked up by name.
        self._running = self._values("tokenmill_engine_requests_running")
        self._waiting = self._values("tokenmill_engine_requests_waiting")
        self._kv_usage = self._values("tokenmill_engine_kv_usage_ratio")
        self._kv_blocks = self._values("tokenmill_engine_kv_blocks")
        self._kv_tokens = self._values("tokenmill_engine_kv_tokens")
        self._prompt_tokens = self._values("tokenmill_engine_prompt_tokens")
        self._generated = self._values("tokenmill_engine_generation_tokens")
        self._recomputed = self._values("tokenmill_engine_recomputed_tokens")
        self._heartbeat = self._values("tokenmill_engine_heartbeat_timestamp_seconds")
        self._itl = self._histogram("tokenmill_engine_itl_seconds")
        self._step_seconds = self._histogram("tokenmill_engine_step_seconds")
        self._step_tokens = self._histogram("tokenmill_engine_step_tokens")
        self._work = KernelWork(self._values)

    def on_event(self, event: Event) -> None:
        """The bus subscriber. Events without a metric are ignored."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            with self._lock:
                handler(event)

    def set_gauges(self, stats: ReplicaGauges) -> None:
        """What must be true at the moment of reading, even when no step completes any more."""
        with self._lock:
            self._running.set(stats.running)
            self._waiting.set(stats.waiting)
            self._set("tokenmill_engine_ready", float(stats.ready))
            self._set("tokenmill_engine_stalled_seconds", stats.stalled_s)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type, by the `Accept` header of the reader."""
        with self._lock:
            self._set("tokenmill_metric_series", sum(len(series.values) for series in self._series.values()))
            frozen = [series.snapshot() for series in self._series.values()]
        # Writing the page takes milliseconds: no step of the engine waits for that.
        return exposition.render(exposition.SeriesCollector(frozen, self._model, self._instance), accept)

    def _step(self, event: StepCompleted) -> None:
        self._heartbeat.set(event.at + self._to_wall)
        self._running.set(event.running)
        self._waiting.set(event.waiting)
        self._set_kv(event.kv_blocks_active, event.kv_blocks_cached, event.kv_blocks_free)
        self._kv_tokens.set(event.kv_tokens)
        tokens = event.prefill_tokens + event.recomputed_tokens + event.decode_tokens
        if event.idle_s > 0:
            self._step_seconds.observe(event.idle_s, "idle_wait")
        if tokens == 0:  # the engine only says that it has gone idle
            return
        self._add("tokenmill_engine_kv_token_steps", event.kv_tokens)
        self._add("tokenmill_engine_kv_slot_steps", event.kv_slots)
        self._prompt_tokens.add(event.prefill_tokens, "computed")
        self._recomputed.add(event.recomputed_tokens)
        self._generated.add(event.sampled_tokens)
        phase = "mixed"
        if event.decode_tokens == 0:
            phase = "prefill"
        elif event.prefill_tokens + event.recomputed_tokens == 0:
            phase = "decode"
        seconds = event.lock_s + event.schedule_s + event.compute_s + event.sample_s
        self._step_seconds.observe(seconds, phase)
        self._step_tokens.observe(tokens)
        self._work.step(event, phase)
        for gap in event.token_gaps_s:
            self._itl.observe(gap)

    def _set_kv(self, active: int, cached: int, free: int) -> None:
        self._kv_blocks.set(active, "active")
        self._kv_blocks.set(cached, "cached")
        self._kv_blocks.set(free, "free")
        self._kv_usage.set(active / max(active + cached + free, 1))

    def _accepted(self, event: RequestAccepted) -> None:
        self._add("tokenmill_engine_accepted", 1)
        self._add("tokenmill_engine_inflight", 1)

    def _ended(self, event: RequestEnded) -> None:
        self._add("tokenmill_engine_ended", 1, event.outcome)
        self._add("tokenmill_engine_inflight", -1)
        self._add("tokenmill_engine_wasted_tokens", event.wasted_tokens)
        self._prompt_tokens.add(event.cached_tokens, "cached")
        for reason in event.finish_reasons:
            self._add("tokenmill_engine_finished", 1, reason)
        if event.outcome != "finished":
            self._add("tokenmill_engine_finished", 1, "error" if event.outcome == "failed" else "abort")
            return
        self._observe("queue", event.queue_s, event)
        self._observe("ttft", event.ttft_s, event)
        self._observe("e2e", event.e2e_s, event)
        if event.ttft_s is None:
            return
        if event.queue_s is not None:
            self._observe("prefill", event.ttft_s - event.queue_s, event)
        decode_s = event.e2e_s - event.ttft_s
        self._observe("decode", decode_s, event)
        further_tokens = event.completion_tokens / max(len(event.finish_reasons), 1) - 1
        if further_tokens > 0:
            self._observe("tpot", decode_s / further_tokens, event)

    def _observe(self, what: str, seconds: float | None, event: RequestEnded) -> None:
        if seconds is not None:
            series = self._histogram(f"tokenmill_engine_{what}_seconds")
            series.observe(seconds, trace=self._trace(event))

    def _trace(self, event: RequestEnded | HttpAnswered) -> Trace | None:
        return Trace(event.trace_id, event.at + self._to_wall) if event.trace_id else None

    def _rejected(self, event: RequestRejected) -> None:
        self._add("tokenmill_engine_admission_rejections", 1, event.code)

    def _lookup(self, event: PrefixLookup) -> None:
        self._add("tokenmill_engine_prefix_query_tokens", event.query_tokens)
        self._add("tokenmill_engine_prefix_hit_tokens", event.hit_tokens)

    def _preempted(self, event: Preempted) -> None:
        self._add("tokenmill_engine_preemptions", 1)

    def _answered(self, event: HttpAnswered) -> None:
        code, error = str(event.status), event.error_code
        self._add("tokenmill_requests", 1, event.tenant, event.route, code, error)
        operation = OPERATIONS.get(event.route)
        if operation is None:
            return
        labels = (operation, self._model, self._model, error)
        trace = self._trace(event)
        self._histogram("gen_ai_server_request_duration_seconds").observe(event.seconds, *labels, trace=trace)
        if event.first_byte_s is None:
            return
        first = event.first_byte_s
        self._histogram("gen_ai_server_time_to_first_token_seconds").observe(first, *labels, trace=trace)
        if event.output_tokens > 1:
            each = (event.seconds - first) / (event.output_tokens - 1)
            self._histogram("gen_ai_server_time_per_output_token_seconds").observe(each, *labels, trace=trace)

    def _loading(self, event: LoadProgress) -> None:
        self._set("tokenmill_model_load_seconds", event.seconds, event.phase)

    def _engine_ready(self, event: EngineReady) -> None:
        self._set_kv(0, 0, event.num_kv_blocks)
        self._set("tokenmill_memory_bytes", event.planned_bytes, "planned")
        self._set("tokenmill_memory_bytes", event.rss_bytes, "measured")
        facts = (str(event.block_size), str(event.num_kv_blocks), event.dtype, str(event.max_model_len))
        self._set("tokenmill_cache_config_info", 1, *facts)

    def _peaks_measured(self, event: PeaksMeasured) -> None:
        self._work.compare_with(event)

    def _values(self, name: str) -> Values:
        series = self._series[name]
        if not isinstance(series, Values):
            raise TypeError(f"{name} is a histogram")
        return series

    def _histogram(self, name: str) -> Histogram:
        series = self._series[name]
        if not isinstance(series, Histogram):
            raise TypeError(f"{name} is not a histogram")
        return series

    def _add(self, name: str, amount: float, *labels: str) -> None:
        self._values(name).add(amount, *labels)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._values(name).set(value, *labels)
