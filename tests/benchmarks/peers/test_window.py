from __future__ import annotations

import pytest

from benchmarks.peers.ours_rows import decode_rate as step_rate
from benchmarks.peers.window import Arrival, decode_rate
from tokenmill.core.events import StepCompleted


def step(at: float, *, prefill: int, sampled: int) -> StepCompleted:
    return StepCompleted(
        at=at,
        running=2,
        waiting=0,
        prefill_tokens=prefill,
        decode_tokens=0,
        recomputed_tokens=0,
        sampled_tokens=sampled,
        kv_blocks_active=0,
        kv_blocks_cached=0,
        kv_blocks_free=0,
        kv_tokens=0,
        kv_slots=0,
        idle_s=0,
        lock_s=0,
        schedule_s=0,
        compute_s=0,
        sample_s=0,
    )


def test_only_the_time_in_which_all_streams_decode_counts() -> None:
    # Stream 0 has tokens at 1, 2, 3, 4; stream 1 at 2, 3, 4, 5: between 2 and 4 there are 4 tokens.
    arrivals = [Arrival(float(at), stream, 1) for stream in (0, 1) for at in range(1 + stream, 5 + stream)]
    assert decode_rate(arrivals) == 2.0


def test_tokens_that_come_together_all_count() -> None:
    assert decode_rate([Arrival(1, 0, 1), Arrival(3, 0, 5)]) == 2.5


@pytest.mark.parametrize(
    "arrivals", [[], [Arrival(1, 0, 1)], [Arrival(1, 0, 1), Arrival(2, 0, 1), Arrival(2, 1, 1)]]
)
def test_streams_that_never_decode_together_have_no_rate(arrivals: list[Arrival]) -> None:
    with pytest.raises(ValueError, match="had ended before"):
        decode_rate(arrivals)


def test_our_steps_count_from_the_last_prefill_while_every_stream_gets_a_token() -> None:
    steps = [
        step(1.0, prefill=64, sampled=1),
        step(2.0, prefill=64, sampled=2),
        step(2.5, prefill=0, sampled=2),
        step(3.0, prefill=0, sampled=2),
        step(3.2, prefill=0, sampled=1),
    ]
    assert step_rate(steps, 2) == 4 / 1.0


def test_our_steps_have_no_rate_when_a_stream_ended_during_prefill() -> None:
    with pytest.raises(ValueError, match="had ended before"):
        step_rate([step(1.0, prefill=64, sampled=2), step(2.0, prefill=0, sampled=1)], 2)
