"""Metrics: what events become, the laws between the numbers, and the bounds on labels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from tokenmill.core.bus import Bus
from tokenmill.core.clock import ManualClock
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
from tokenmill.observe.metrics import Metrics
from tokenmill.observe.names import NAMES, SECONDS
from tokenmill.observe.series import MAX_VALUES_PER_LABEL

OPENMETRICS = "application/openmetrics-text"
parse_openmetrics: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page(metrics: Metrics) -> Samples:
    """Every sample by name and labels, without the labels that all of them carry."""
    common = {("model", "m"), ("instance", "0"), ("model_name", "m"), ("engine", "0")}
    text = metrics.render("")[0].decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(set(sample.labels.items()) - common))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def fed(*events: Event) -> Samples:
    metrics = Metrics("m", "0", clock=ManualClock(1000))
    for event in events:
        metrics.on_event(event)
    return page(metrics)


def step(**fields: Any) -> StepCompleted:
    nothing: dict[str, Any] = dict.fromkeys(StepCompleted.__struct_fields__, 0)
    nothing.update(model="", instance="", token_gaps_s=())
    return StepCompleted(**{**nothing, **fields})


def accepted(name: str = "r") -> RequestAccepted:
    return RequestAccepted(at=0, request_id=name, tenant="t", prompt_tokens=5, n=1, max_tokens=9)


def ended(outcome: Outcome = "finished", **fields: Any) -> RequestEnded:
    return RequestEnded(at=0, request_id="r", tenant="t", outcome=outcome, **fields)


READY = EngineReady(
    at=0,
    block_size=32,
    num_kv_blocks=64,
    dtype="float32",
    max_model_len=2048,
    planned_bytes=1,
    rss_bytes=1,
)


def answered(**fields: Any) -> HttpAnswered:
    plain: dict[str, Any] = {
        "at": 0,
        "route": "/v1/chat/completions",
        "status": 200,
        "error_code": "",
        "tenant": "default",
        "seconds": 1.0,
        "request_id": "r",
    }
    return HttpAnswered(**{**plain, **fields})


def test_a_step_sets_gauges_and_adds_tokens() -> None:
    first = step(
        at=5.0,
        running=3,
        waiting=2,
        prefill_tokens=32,
        recomputed_tokens=8,
        decode_tokens=2,
        sampled_tokens=3,
        kv_blocks_active=6,
        kv_blocks_cached=2,
        kv_blocks_free=8,
        kv_tokens=150,
        kv_slots=160,
        schedule_s=0.001,
        compute_s=0.02,
        idle_s=0.5,
        token_gaps_s=(0.03, 0.05),
    )
    samples = fed(first)
    assert value(samples, "tokenmill_engine_requests_running") == 3
    assert value(samples, "tokenmill_engine_requests_waiting") == 2
    assert value(samples, "tokenmill_engine_kv_usage_ratio") == 6 / 16
    assert value(samples, "tokenmill_engine_kv_blocks", state="cached") == 2
    assert value(samples, "tokenmill_engine_prompt_tokens_total", source="computed") == 32
    assert value(samples, "tokenmill_engine_recomputed_tokens_total") == 8
    assert value(samples, "tokenmill_engine_generation_tokens_total") == 3
    assert value(samples, "tokenmill_engine_itl_seconds_count") == 2
    assert value(samples, "tokenmill_engine_itl_seconds_sum") == pytest.approx(0.08)
    assert value(samples, "tokenmill_engine_step_seconds_sum", phase="mixed") == pytest.approx(0.021)
    assert value(samples, "tokenmill_engine_step_seconds_sum", phase="idle_wait") == 0.5
    assert value(samples, "tokenmill_engine_step_tokens_sum") == 42


def test_the_last_step_before_idling_brings_gauges_to_zero_and_is_no_step() -> None:
    samples = fed(
        step(running=3, decode_tokens=3, sampled_tokens=3, kv_blocks_active=4), step(kv_blocks_free=9)
    )
    assert value(samples, "tokenmill_engine_requests_running") == 0
    assert value(samples, "tokenmill_engine_kv_blocks", state="active") == 0
    assert value(samples, "tokenmill_engine_kv_usage_ratio") == 0
    assert value(samples, "tokenmill_engine_step_tokens_count") == 1


@pytest.mark.parametrize(
    ("prefill", "decode", "phase"), [(4, 0, "prefill"), (0, 4, "decode"), (4, 4, "mixed")]
)
def test_phases_of_steps(prefill: int, decode: int, phase: str) -> None:
    samples = fed(step(prefill_tokens=prefill, decode_tokens=decode, compute_s=0.1))
    assert value(samples, "tokenmill_engine_step_seconds_count", phase=phase) == 1


def test_the_heartbeat_is_the_wall_time_of_the_last_step() -> None:
    clock = ManualClock(50)
    clock.wall = lambda: 1_000_050.0  # type: ignore[method-assign]
    metrics = Metrics("m", "0", clock=clock)
    metrics.on_event(step(at=60.0, decode_tokens=1))
    assert value(page(metrics), "tokenmill_engine_heartbeat_timestamp_seconds") == 1_000_060.0


def test_a_finished_request_is_split_into_its_times() -> None:
    samples = fed(
        accepted(),
        ended(
            finish_reasons=("stop", "length"),
            completion_tokens=22,
            cached_tokens=4,
            queue_s=1.0,
            ttft_s=3.0,
            e2e_s=8.0,
        ),
    )
    seconds = {
        what: value(samples, f"tokenmill_engine_{what}_seconds_sum")
        for what in ("queue", "prefill", "ttft", "decode", "e2e", "tpot")
    }
    # 11 tokens a choice: ten gaps in five seconds.
    assert seconds == {"queue": 1, "prefill": 2, "ttft": 3, "decode": 5, "e2e": 8, "tpot": 0.5}
    assert value(samples, "tokenmill_engine_finished_total", reason="length") == 1
    assert value(samples, "tokenmill_engine_prompt_tokens_total", source="cached") == 4


@pytest.mark.parametrize(("outcome", "reason"), [("failed", "error"), ("cancelled", "abort")])
def test_what_did_not_finish_counts_as_such_and_not_in_the_times(outcome: Outcome, reason: str) -> None:
    samples = fed(accepted(), ended(outcome, wasted_tokens=7, ttft_s=1.0, e2e_s=2.0))
    assert value(samples, "tokenmill_engine_finished_total", reason=reason) == 1
    assert value(samples, "tokenmill_engine_wasted_tokens_total") == 7
    assert value(samples, "tokenmill_engine_e2e_seconds_count") == 0


def test_the_rest_of_the_events() -> None:
    samples = fed(
        RequestRejected(at=0, request_id="r", tenant="t", code="context_length_exceeded"),
        PrefixLookup(at=0, request_id="r", query_tokens=10, hit_tokens=6),
        Preempted(at=0, request_id="r", freed_blocks=3, lost_tokens=96),
        LoadProgress(at=0, phase="read", source="disk", bytes=10, seconds=1.5),
        READY,
    )
    rejections = "tokenmill_engine_admission_rejections_total"
    assert value(samples, rejections, reason="context_length_exceeded") == 1
    assert value(samples, "vllm:prefix_cache_queries_total") == 10
    assert value(samples, "vllm:prefix_cache_hits_total") == 6
    assert value(samples, "vllm:num_preemptions_total") == 1
    assert value(samples, "tokenmill_model_load_seconds", phase="read") == 1.5
    assert value(samples, "tokenmill_engine_kv_blocks", state="free") == 64
    facts = {"block_size": "32", "num_gpu_blocks": "64", "cache_dtype": "float32"}
    assert value(samples, "vllm:cache_config_info", **facts) == 1


PEAKS = PeaksMeasured(
    at=0,
    isa="avx2",
    threads=4,
    read_bytes_per_second=20e9,
    int8_multiply_adds_per_second=400e9,
)


def test_work_of_the_kernels_is_a_share_of_the_peaks() -> None:
    decode = step(decode_tokens=1, compute_s=0.5, moved_bytes=8_000_000_000, multiply_adds=10_000_000_000)
    prefill = step(prefill_tokens=9, compute_s=0.1, moved_bytes=100_000_000, multiply_adds=20_000_000_000)
    samples = fed(PEAKS, decode, decode, prefill)
    assert value(samples, "tokenmill_engine_kernel_seconds_total", phase="decode") == 1
    assert value(samples, "tokenmill_engine_moved_bytes_total", phase="decode") == 16e9
    assert value(samples, "tokenmill_engine_multiply_adds_total", phase="decode") == 20e9
    # 16 of 20 GB/s, and 20 of 400 billion multiply-adds a second.
    assert value(samples, "tokenmill_engine_memory_share_ratio", phase="decode") == pytest.approx(0.8)
    assert value(samples, "tokenmill_engine_int8_share_ratio", phase="decode") == pytest.approx(0.05)
    assert value(samples, "tokenmill_engine_memory_share_ratio", phase="prefill") == pytest.approx(0.05)
    assert value(samples, "tokenmill_engine_int8_share_ratio", phase="prefill") == pytest.approx(0.5)
    assert value(samples, "tokenmill_peak_read_bytes_per_second") == 20e9
    assert value(samples, "tokenmill_peak_int8_multiply_adds_per_second") == 400e9
    assert value(samples, "tokenmill_cpu_info", isa="avx2", threads="4") == 1


def test_kernels_that_do_not_count_have_time_and_no_shares() -> None:
    samples = fed(PEAKS, step(decode_tokens=1, compute_s=0.5))
    assert value(samples, "tokenmill_engine_kernel_seconds_total", phase="decode") == 0.5
    assert not [name for name, _ in samples if "moved_bytes" in name or "share" in name]


def test_without_peaks_work_is_counted_and_compared_with_nothing() -> None:
    samples = fed(step(decode_tokens=1, compute_s=0.5, moved_bytes=7, multiply_adds=3))
    assert value(samples, "tokenmill_engine_moved_bytes_total", phase="decode") == 7
    assert not [name for name, _ in samples if "share" in name]


def test_answers_are_counted_by_what_the_client_saw() -> None:
    samples = fed(
        answered(),
        answered(status=499, error_code="client_gone"),
        answered(route="/v1/completions", seconds=5.0, first_byte_s=1.0, output_tokens=9),
        answered(route="/health"),
    )
    common = {"tenant": "default", "route": "/v1/chat/completions"}
    assert value(samples, "tokenmill_requests_total", code="200", error_type="", **common) == 1
    assert value(samples, "tokenmill_requests_total", code="499", error_type="client_gone", **common) == 1
    otel = {
        "gen_ai_operation_name": "text_completion",
        "gen_ai_request_model": "m",
        "gen_ai_response_model": "m",
        "error_type": "",
    }
    assert value(samples, "gen_ai_server_request_duration_seconds_sum", **otel) == 5
    assert value(samples, "gen_ai_server_time_to_first_token_seconds_sum", **otel) == 1
    assert value(samples, "gen_ai_server_time_per_output_token_seconds_sum", **otel) == 0.5
    durations = [key for key in samples if key[0] == "gen_ai_server_request_duration_seconds_count"]
    assert len(durations) == 3, "health checks do not generate"


def test_gauges_of_the_moment_overrule_the_last_step() -> None:
    metrics = Metrics("m", "0")
    metrics.on_event(step(running=1, decode_tokens=1))
    metrics.set_gauges(SimpleNamespace(ready=False, running=4, waiting=9, stalled_s=31.0))
    samples = page(metrics)
    assert value(samples, "vllm:num_requests_waiting") == 9
    assert value(samples, "tokenmill_engine_requests_running") == 4
    assert value(samples, "tokenmill_engine_ready") == 0
    assert value(samples, "tokenmill_engine_stalled_seconds") == 31


FEW = settings(max_examples=15, deadline=None)  # each example renders and parses a whole page
OUTCOMES: tuple[Outcome, ...] = ("finished", "failed", "cancelled")


@FEW
@given(st.lists(st.sampled_from(OUTCOMES), max_size=30), st.integers(0, 10))
def test_accepted_is_ended_and_in_flight(outcomes: list[Outcome], still_running: int) -> None:
    events = [accepted() for _ in range(len(outcomes) + still_running)]
    samples = fed(*events, *(ended(outcome, finish_reasons=("stop",)) for outcome in outcomes))
    total = sum(value(samples, "tokenmill_engine_ended_total", outcome=outcome) for outcome in OUTCOMES)
    assert value(samples, "tokenmill_engine_inflight") == still_running
    assert value(samples, "tokenmill_engine_accepted_total") == total + still_running


@FEW
@given(st.lists(st.floats(0, 1000), max_size=40))
def test_buckets_of_a_histogram_add_up(gaps: list[float]) -> None:
    samples = fed(step(decode_tokens=1, token_gaps_s=tuple(gaps)))
    name = "tokenmill_engine_itl_seconds"
    for edge in SECONDS:
        assert value(samples, f"{name}_bucket", le=str(edge)) == sum(gap <= edge for gap in gaps)
    assert value(samples, f"{name}_bucket", le="+Inf") == len(gaps)
    assert value(samples, f"{name}_count") == len(gaps)
    assert value(samples, f"{name}_sum") == pytest.approx(sum(gaps))


def busy() -> list[Event]:
    return [
        accepted(),
        step(running=1, waiting=2, prefill_tokens=9, decode_tokens=3, sampled_tokens=3, token_gaps_s=(0.1,)),
        ended(
            finish_reasons=("stop",), completion_tokens=3, cached_tokens=2, queue_s=0.1, ttft_s=0.2, e2e_s=0.9
        ),
        READY,
        PrefixLookup(at=0, request_id="r", query_tokens=3, hit_tokens=1),
        RequestRejected(at=0, request_id="r", tenant="t", code="overloaded"),
    ]


@pytest.mark.parametrize("row", [row for row in NAMES if row.alias], ids=lambda row: row.alias)
def test_an_alias_has_the_numbers_of_its_row(row: Any) -> None:
    samples = fed(*busy())
    checked = 0
    for name, labels in list(samples):
        suffix = name.removeprefix(row.alias)
        if not name.startswith(row.alias) or suffix not in ("", "_total", "_bucket", "_count", "_sum"):
            continue
        back = {theirs: ours for ours, theirs in row.alias_labels.items()}
        kept = {(back.get(key, key), item) for key, item in labels}
        own = [number for (one, ls), number in samples.items() if one == row.name + suffix and kept <= ls]
        assert samples[name, labels] == sum(own)
        checked += 1
    assert checked


def test_the_names_every_vllm_dashboard_reads_are_there() -> None:
    samples = {name for name, _ in fed(*busy())}
    assert samples >= {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:request_time_per_output_token_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "vllm:request_prefill_time_seconds_bucket",
        "vllm:request_decode_time_seconds_bucket",
        "vllm:iteration_tokens_total_bucket",
    }


def test_label_values_are_bounded() -> None:
    many = 5 * MAX_VALUES_PER_LABEL
    samples = fed(*(answered(tenant=f"tenant-{number}") for number in range(many)))
    tenants = [dict(labels)["tenant"] for name, labels in samples if name == "tokenmill_requests_total"]
    assert len(tenants) == MAX_VALUES_PER_LABEL + 1
    labels = {"route": "/v1/chat/completions", "code": "200", "error_type": ""}
    assert value(samples, "tokenmill_requests_total", tenant="other", **labels) == many - MAX_VALUES_PER_LABEL
    assert sum(number for (name, _), number in samples.items() if name == "tokenmill_requests_total") == many


def test_label_values_with_special_characters_survive() -> None:
    odd = 'a"b\\c\nd'
    metrics = Metrics(odd, "0")
    for accept in ("", OPENMETRICS):
        text = metrics.render(accept)[0].decode()
        families = parse_openmetrics(text) if accept else text_string_to_metric_families(text)
        models = {sample.labels.get("model") for family in families for sample in family.samples}
        assert odd in models


def test_both_formats_tell_the_same() -> None:
    metrics = Metrics("m", "0", clock=ManualClock(1000))
    for event in busy():
        metrics.on_event(event)
    plain, modern = metrics.render("text/plain"), metrics.render(f"{OPENMETRICS}; version=1.0.0, */*")
    assert plain[1].startswith("text/plain; version=0.0.4")
    assert modern[1].startswith("application/openmetrics-text; version=1.0.0")
    found = [
        {(s.name, frozenset(s.labels.items()), s.value) for family in families for s in family.samples}
        for families in (
            text_string_to_metric_families(plain[0].decode()),
            parse_openmetrics(modern[0].decode()),
        )
    ]
    assert found[0] == found[1]


def test_traced_requests_leave_exemplars() -> None:
    metrics = Metrics("m", "0", clock=ManualClock(1000))
    metrics.on_event(ended(finish_reasons=("stop",), ttft_s=0.2, e2e_s=0.9, trace_id="ab" * 16))
    families = parse_openmetrics(metrics.render(OPENMETRICS)[0].decode())
    exemplars = {
        (sample.name, sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for family in families
        for sample in family.samples
        if sample.exemplar
    }
    assert ("tokenmill_engine_ttft_seconds_bucket", "ab" * 16, 0.2) in exemplars
    assert ("vllm:e2e_request_latency_seconds_bucket", "ab" * 16, 0.9) in exemplars
    assert "trace_id" not in metrics.render("")[0].decode()


def test_no_event_is_lost_between_threads() -> None:
    bus, metrics = Bus(), Metrics("m", "0")
    bus.subscribe(metrics.on_event)

    def publish() -> None:
        for event in busy() * 500:
            bus.publish(event)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        metrics.render("")
    for thread in threads:
        thread.join()
    samples = page(metrics)
    assert bus.errors == 0
    assert value(samples, "tokenmill_engine_accepted_total") == 2000
    assert value(samples, "tokenmill_engine_generation_tokens_total") == 6000
    assert value(samples, "tokenmill_engine_itl_seconds_count") == 2000


def test_events_without_a_metric_are_ignored() -> None:
    class Unknown(Event, frozen=True):
        pass

    assert fed(Unknown(at=0)) == fed()


def test_series_are_counted() -> None:
    few, more = fed(), fed(answered())
    assert value(more, "tokenmill_metric_series") == value(few, "tokenmill_metric_series") + 2


def test_every_event_of_the_catalogue_has_a_metric() -> None:
    known = {one for one in Event.__subclasses__() if one.__module__ == "tokenmill.core.events"}
    assert len(known) >= 9
    for kind in known:
        fields = dict.fromkeys(kind.__struct_fields__, 0)
        try:
            event = msgspec.convert({**fields, **texts(kind)}, kind)
        except msgspec.ValidationError as error:
            pytest.fail(f"{kind.__name__}: {error}")
        assert fed(event) != fed(), kind.__name__


def texts(kind: type[Event]) -> dict[str, object]:
    """A value of the right type for the fields of an event that are not numbers."""
    made: dict[str, object] = {}
    for one in msgspec.structs.fields(kind):
        if one.type is str:
            made[one.name] = "x"
        elif one.name == "outcome":
            made[one.name] = "finished"
        elif "tuple" in str(one.type):
            made[one.name] = ()
        elif one.type is int:
            made[one.name] = 1
    return made
