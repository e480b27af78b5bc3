"""What happened, as typed facts on the bus. Metrics, logs and traces are subscribers.

Laws that hold by construction, per model:
accepted = finished + failed + cancelled + in flight, counted in requests.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["finished", "failed", "cancelled"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base: where it happened. `at` is monotonic seconds."""

    at: float
    model: str = ""
    instance: str = ""


class RequestAccepted(Event, frozen=True, kw_only=True):
    request_id: str
    tenant: str
    prompt_tokens: int
    n: int
    max_tokens: int
    trace_id: str = ""


class RequestEnded(Event, frozen=True, kw_only=True):
    """Exactly one an accepted request.

    Times are seconds from acceptance; None where the request never got that far.
    `finish_reasons` has one entry a finished choice. `wasted_tokens` were sampled and never handed out.
    """

    request_id: str
    tenant: str
    outcome: Outcome
    error_code: str = ""
    finish_reasons: tuple[str, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    preemptions: int = 0
    queue_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float = 0.0
    trace_id: str = ""


class StepCompleted(Event, frozen=True, kw_only=True):
    """One engine step.

    Its tokens are prompt tokens computed for the first time, tokens computed again after a preemption, and
    the rest, which is decoding.

    `token_gaps_s` holds, for each sequence that got a further token, the seconds since its last one.
    `compute_s` is inside the kernels; `idle_s` is the wait before this step with nothing to do.
    `kv_tokens` of the `kv_slots` in active blocks hold a token.
    `moved_bytes` and `multiply_adds` are what the kernels read and computed; 0 where they do not count.
    """

    running: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    recomputed_tokens: int
    sampled_tokens: int
    kv_blocks_active: int
    kv_blocks_cached: int
    kv_blocks_free: int
    kv_tokens: int
    kv_slots: int
    idle_s: float
    lock_s: float
    schedule_s: float
    compute_s: float
    sample_s: float
    token_gaps_s: tuple[float, ...] = ()
    moved_bytes: int = 0
    multiply_adds: int = 0


class PrefixLookup(Event, frozen=True, kw_only=True):
    """A sequence was admitted: how much of it the prefix cache answered."""

    request_id: str
    query_tokens: int
    hit_tokens: int


class Preempted(Event, frozen=True, kw_only=True):
    """A sequence gave blocks back; `lost_tokens` must be computed again."""

    request_id: str
    freed_blocks: int
    lost_tokens: int


class RequestRejected(Event, frozen=True, kw_only=True):
    """Refused before acceptance."""

    request_id: str
    tenant: str
    code: str


class HttpAnswered(Event, frozen=True, kw_only=True):
    """What the client saw on a route; 499 when it left first.

    `first_byte_s` is from the last byte of the request to the first byte of a streamed body.
    """

    route: str
    status: int
    error_code: str
    tenant: str
    seconds: float
    request_id: str
    first_byte_s: float | None = None
    output_tokens: int = 0
    trace_id: str = ""


class LoadProgress(Event, frozen=True, kw_only=True):
    """Loading a model: `phase` is fetch, copy, read, pool or warm."""

    phase: str
    source: str
    bytes: int
    seconds: float


class EngineReady(Event, frozen=True, kw_only=True):
    """Fixed facts of a warm engine.

    `dtype` is the type of its matrices; `kernels` the instruction set of what multiplies them, or `torch`.
    """

    block_size: int
    num_kv_blocks: int
    dtype: str
    kernels: str = "torch"
    max_model_len: int
    planned_bytes: int
    rss_bytes: int


class PeaksMeasured(Event, frozen=True, kw_only=True):
    """What the machine can do at most with code for `isa` on `threads` threads.

    Steps cannot read more bytes of memory a second, or do more int8 multiply-adds.
    """

    isa: str
    threads: int
    read_bytes_per_second: float
    int8_multiply_adds_per_second: float
