"""The table of metric names: what the code of every series is made from.

Every series carries `model` and `instance` besides the labels of its row. A row with an alias is served
a second time under the name vLLM uses, from the same numbers, with the labels `model_name` and `engine`:
dashboards, autoscalers and endpoint pickers made for vLLM then work unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


def _seconds() -> tuple[float, ...]:
    """Edges from 1.25 ms to 655 s, four to a doubling: a quantile read from them is off by at most 19 %.

    They include every edge of OpenTelemetry's request duration (10 ms times powers of two).
    """
    return tuple(float(f"{0.00125 * 2 ** (k / 4):.6g}") for k in range(77))


SECONDS = _seconds()
TOKENS = tuple(float(2**k) for k in range(15))


@dataclass(frozen=True)
class Name:
    """One row.

    Attributes:
        name: full name; a counter is shown with `_total` behind it.
        labels: beside `model` and `instance`.
        edges: upper bounds of a histogram's buckets, without infinity.
        alias: vLLM's name without `_total`, if it has one.
        alias_labels: our label to vLLM's; labels left out are summed over.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    alias: str = ""
    alias_labels: Mapping[str, str] = field(default_factory=dict)


def _gauge(name: str, help: str, *labels: str, alias: str = "", **alias_labels: str) -> Name:
    return Name(name, "gauge", help, labels, alias=alias, alias_labels=alias_labels)


def _counter(name: str, help: str, *labels: str, alias: str = "", **alias_labels: str) -> Name:
    return Name(name, "counter", help, labels, alias=alias, alias_labels=alias_labels)


def _histogram(
    name: str, help: str, *labels: str, edges: tuple[float, ...] = SECONDS, alias: str = ""
) -> Name:
    return Name(name, "histogram", help, labels, edges, alias)


_OTEL = ("gen_ai_operation_name", "gen_ai_request_model", "gen_ai_response_model", "error_type")

NAMES: tuple[Name, ...] = (
    # What clients saw.
    _counter("tokenmill_requests", "HTTP answers; 499 when the client left first.",
             "tenant", "route", "code", "error_type"),
    _histogram("gen_ai_server_request_duration_seconds", "Time of generating requests.", *_OTEL),
    _histogram("gen_ai_server_time_to_first_token_seconds",
               "Last byte of a streaming request to first byte of its answer.", *_OTEL),
    _histogram("gen_ai_server_time_per_output_token_seconds",
               "Time per output token after the first of streaming requests.", *_OTEL),
    # The engine's requests: accepted = ended + in flight.
    _counter("tokenmill_engine_accepted", "Requests the engine took."),
    _counter("tokenmill_engine_ended", "Requests that ended.", "outcome"),
    _gauge("tokenmill_engine_inflight", "Requests taken and not ended."),
    _counter("tokenmill_engine_admission_rejections", "Requests the engine refused.", "reason",
             alias="vllm:admission_rejections", reason="reason"),
    _counter("tokenmill_engine_finished", "Choices by how they ended; abort and error count requests.",
             "reason", alias="vllm:request_success", reason="finished_reason"),
    _gauge("tokenmill_engine_requests_running", "Sequences in the running batch.",
           alias="vllm:num_requests_running"),
    _gauge("tokenmill_engine_requests_waiting", "Requests waiting to run.",
           alias="vllm:num_requests_waiting"),
    # Tokens.
    _counter("tokenmill_engine_prompt_tokens", "Prompt tokens, computed or found in the prefix cache.",
             "source", alias="vllm:prompt_tokens"),
    _counter("tokenmill_engine_generation_tokens", "Tokens sampled.", alias="vllm:generation_tokens"),
    _counter("tokenmill_engine_wasted_tokens", "Tokens sampled and never delivered."),
    _counter("tokenmill_engine_recomputed_tokens", "Tokens computed again after a preemption."),
    # KV cache.
    _gauge("tokenmill_engine_kv_usage_ratio", "Share of the KV blocks in use, 0 to 1.",
           alias="vllm:kv_cache_usage_perc"),
    _gauge("tokenmill_engine_kv_blocks", "KV blocks by state; active is 0 while idle.", "state"),
    _gauge("tokenmill_engine_kv_tokens", "Tokens held in active KV blocks."),
    _counter("tokenmill_engine_kv_token_steps", "KV slots that hold a token, summed over steps."),
    _counter("tokenmill_engine_kv_slot_steps", "KV slots in active blocks, summed over steps."),
    _counter("tokenmill_engine_prefix_query_tokens", "Tokens looked up in the prefix cache.",
             alias="vllm:prefix_cache_queries"),
    _counter("tokenmill_engine_prefix_hit_tokens", "Tokens found in the prefix cache.",
             alias="vllm:prefix_cache_hits"),
    _counter("tokenmill_engine_preemptions", "Sequences that gave blocks back.",
             alias="vllm:num_preemptions"),
    # Times of a request, from acceptance.
    _histogram("tokenmill_engine_queue_seconds", "Acceptance to first scheduling.",
               alias="vllm:request_queue_time_seconds"),
    _histogram("tokenmill_engine_prefill_seconds", "First scheduling to first token.",
               alias="vllm:request_prefill_time_seconds"),
    _histogram("tokenmill_engine_ttft_seconds", "Acceptance to first token.",
               alias="vllm:time_to_first_token_seconds"),
    _histogram("tokenmill_engine_decode_seconds", "First token to end.",
               alias="vllm:request_decode_time_seconds"),
    _histogram("tokenmill_engine_e2e_seconds", "Acceptance to end.",
               alias="vllm:e2e_request_latency_seconds"),
    _histogram("tokenmill_engine_tpot_seconds", "A request's mean time per output token after the first.",
               alias="vllm:request_time_per_output_token_seconds"),
    _histogram("tokenmill_engine_itl_seconds", "Time between consecutive tokens of a sequence.",
               alias="vllm:inter_token_latency_seconds"),
    # Steps.
    _histogram("tokenmill_engine_step_seconds", "Time of a step; idle_wait is the wait before it.", "phase"),
    _histogram("tokenmill_engine_step_tokens", "Tokens computed a step.", edges=TOKENS,
               alias="vllm:iteration_tokens_total"),
    # What native kernels do, beside what the machine can do at most.
    _counter("tokenmill_engine_kernel_seconds", "Time inside the kernels.", "phase"),
    _counter("tokenmill_engine_moved_bytes", "Bytes kernels moved between memory and processor.", "phase"),
    _counter("tokenmill_engine_multiply_adds", "Multiply-adds of the kernels' products.", "phase"),
    _gauge("tokenmill_engine_memory_share_ratio",
           "Bytes a second of the last step, as a share of the peak; above 1 where caches help.", "phase"),
    _gauge("tokenmill_engine_int8_share_ratio",
           "Multiply-adds a second of the last step, as a share of the peak.", "phase"),
    _gauge("tokenmill_peak_read_bytes_per_second", "Measured: bytes all threads read from memory a second."),
    _gauge("tokenmill_peak_int8_multiply_adds_per_second",
           "Measured: int8 multiply-adds all threads do a second."),
    _gauge("tokenmill_cpu_info", "Always 1; the facts are in the labels.", "isa", "threads"),
    _gauge("tokenmill_engine_heartbeat_timestamp_seconds", "When the engine last finished a step."),
    _gauge("tokenmill_engine_stalled_seconds", "How long the present work has gone without a finished step."),
    _gauge("tokenmill_engine_ready", "1 when a request would be taken."),
    # Fixed facts.
    _gauge("tokenmill_model_load_seconds", "Time of each phase of loading.", "phase"),
    _gauge("tokenmill_memory_bytes", "Resident memory after loading: planned and measured.", "kind"),
    _gauge("tokenmill_cache_config_info", "Always 1; the facts are in the labels.",
           "block_size", "num_blocks", "dtype", "max_model_len", alias="vllm:cache_config_info",
           block_size="block_size", num_blocks="num_gpu_blocks", dtype="cache_dtype"),
    _gauge("tokenmill_metric_series", "Series on this page, histogram buckets counted once a histogram."),
)  # fmt: skip
