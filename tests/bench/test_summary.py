"""Hand calculations: every expected number is worked out beside its test."""

import pytest

from tokenmill.bench.latency import meets, request_latencies, token_gaps
from tokenmill.bench.record import ErrorKind, Record
from tokenmill.bench.report import render
from tokenmill.bench.summary import summarize
from tokenmill.bench.window import steady_window, tokens_within
from tokenmill.core.errors import ConfigError


def record(
    scheduled: float = 0.0,
    sent: float | None = None,
    times: tuple[float, ...] = (2.0, 2.5, 3.5),
    end: float = 4.0,
    tokens: int | None = 3,
    error: ErrorKind | None = None,
    cancelled: bool = False,
    gap_tokens: tuple[int, ...] = (),
    content: float | None = None,
) -> Record:
    first = times[0] if times else None
    return Record(
        index=0,
        scheduled=scheduled,
        sent=scheduled if sent is None else sent,
        first_chunk=first,
        first_token=first,
        first_content=first if content is None else content,
        end=end,
        status=200,
        error=error,
        cancelled=cancelled,
        finish_reason=None if error or cancelled else "stop",
        prompt_tokens=10,
        completion_tokens=tokens,
        token_times=list(times),
        gap_tokens=list(gap_tokens),
    )


def test_latencies_of_one_request() -> None:
    # Due at 1, sent at 1.5, tokens at 2, 2.5 and 3.5, content from 2.5 on, over at 4.
    found = request_latencies(record(scheduled=1.0, sent=1.5, content=2.5))
    assert found == {
        "client_delay": 0.5,
        "ttft_any_from_schedule": 1.0,
        "ttft_any_from_send": 0.5,
        "ttft_content_from_schedule": 1.5,
        "ttft_content_from_send": 1.0,
        "e2e_from_schedule": 3.0,
        "e2e_from_send": 2.5,
        "ntpot_from_schedule": 1.0,
        "ntpot_from_send": pytest.approx(2.5 / 3),
        "tpot": 1.0,  # (4 - 2) / (3 - 1)
    }


def test_one_token_has_no_time_per_output_token() -> None:
    assert "tpot" not in request_latencies(record(times=(2.0,), tokens=1))


def test_gaps_are_divided_by_the_tokens_the_server_counted() -> None:
    assert token_gaps(record(gap_tokens=(1, 4), tokens=6)) == ([0.5, 0.25], True)


def test_without_running_counts_frames_share_the_usage() -> None:
    # 9 tokens in 3 frames are 3 a frame.
    gaps, exact = token_gaps(record(tokens=9))
    assert gaps == pytest.approx([0.5 / 3, 1.0 / 3])
    assert not exact


def test_an_end_token_without_text_does_not_shrink_the_gaps() -> None:
    assert token_gaps(record(tokens=4)) == ([0.5, 1.0], False)


def test_an_slo_is_met_at_its_limit_and_by_success_alone() -> None:
    slo = {"ttft_any_from_schedule": 2.0, "tpot": 1.0}
    assert meets(record(), slo)
    assert not meets(record(), {"ttft_any_from_schedule": 1.9})
    assert not meets(record(error="reset"), slo)
    assert not meets(record(times=(), tokens=0), slo)


def test_one_token_cannot_miss_the_limit_between_tokens() -> None:
    assert meets(record(times=(1.0,), tokens=1), {"tpot": 0.001})


def test_failures_and_unsent_arrivals_count_against_goodput() -> None:
    # 2 of 4 sent and not cancelled are good; one more never left: 2 of 5. All is over after 4 s.
    records = [record(), record(), record(times=(3.0, 4.0)), record(error="http"), record(cancelled=True)]
    good = summarize(records, unsent=1, slo={"ttft_any": 2.5}).goodput
    assert good is not None
    assert (good.good, good.of, good.share, good.requests_per_s) == (2, 5, 0.4, 0.5)


def test_failed_and_cancelled_requests_are_in_no_latency() -> None:
    summary = summarize([record(), record(end=100.0, error="timeout"), record(end=50.0, cancelled=True)])
    assert summary.metrics["e2e_from_send"].samples == 1
    assert summary.metrics["e2e_from_send"].max == 4.0
    assert (summary.requests, summary.succeeded, summary.failed, summary.cancelled) == (3, 1, 1, 1)
    assert summary.errors == {"timeout": 1}
    assert summary.finish_reasons == {"stop": 1}


def test_percentiles_are_linear_interpolations() -> None:
    # e2e 1, 2, ..., 11: p50 is the 6th, p90 the 10th, p95 half way from the 10th to the 11th.
    summary = summarize([record(end=float(end), times=()) for end in range(1, 12)])
    quantiles = summary.metrics["e2e_from_send"].quantiles
    assert [quantiles[name].value for name in ("p50", "p90", "p95")] == pytest.approx([6.0, 10.0, 10.5])
    assert quantiles["p50"].low < 6.0 < quantiles["p50"].high


def test_totals() -> None:
    # 6 tokens from 1 (first due) to 5 (last end): 4 s.
    summary = summarize([record(scheduled=1.0), record(scheduled=1.5, end=5.0)])
    assert (summary.prompt_tokens, summary.output_tokens, summary.duration_s) == (20, 6, 4.0)
    assert (summary.output_tokens_per_s, summary.requests_per_s) == (1.5, 0.5)
    assert summary.rate.scheduled == summary.rate.sent == 2.0  # one interval of 0.5 s


def test_the_steady_window_ends_with_the_last_send() -> None:
    # Sent at 0..10, so the warm-up is the first second; each answer's 3 tokens come at once at its end.
    records = [record(scheduled=float(at), times=(at + 0.5,), end=at + 0.5) for at in range(11)]
    window = steady_window(records)
    assert (window.start_s, window.end_s, window.steady) == (1.0, 10.0, True)
    assert window.output_tokens == 27  # ends 1.5 to 9.5
    assert window.output_tokens_per_s == 3.0
    assert steady_window(records, warmup_s=4.0).output_tokens == 18


def test_a_burst_has_no_steady_window() -> None:
    window = steady_window([record(), record(end=8.0)])
    assert (window.steady, window.start_s, window.end_s) == (False, 0.0, 8.0)
    assert window.output_tokens_per_s == 6 / 8


def test_tokens_within_share_the_servers_count() -> None:
    assert tokens_within(record(tokens=6), 2.5, 4.0) == 4.0  # two of three frames with two tokens each
    assert tokens_within(record(times=(), tokens=6), 3.0, 4.0) == 6.0
    assert tokens_within(record(times=(), tokens=6), 0.0, 3.9) == 0.0


def test_p99_of_few_samples_is_warned_about_and_of_many_is_not() -> None:
    few, many = (
        summarize([record(scheduled=float(n), end=n + 4.0) for n in range(count)]) for count in (299, 300)
    )
    assert any("p99 of" in warning and "299" in warning for warning in few.warnings)
    assert not any("p99 of" in warning for warning in many.warnings)


def test_a_client_that_cannot_keep_up_says_so() -> None:
    # 1 request/s scheduled, one each 2 s sent.
    slow = summarize([record(scheduled=float(n), sent=2.0 * n, end=2.0 * n + 4) for n in range(10)])
    assert any("bottleneck" in warning for warning in slow.warnings)


def test_exactness_of_gaps_is_a_share_of_all_gaps() -> None:
    summary = summarize([record(gap_tokens=(1, 1)), record(), record(times=(1.0, 2.0))])
    assert summary.itl_exact == pytest.approx(2 / 5)


def test_answers_without_usage_are_named() -> None:
    assert any("without usage" in warning for warning in summarize([record(tokens=None)]).warnings)


def test_an_empty_run_is_a_summary_of_nothing() -> None:
    summary = summarize([])
    assert (summary.requests, summary.duration_s, summary.metrics, summary.output_tokens_per_s) == (
        0,
        0.0,
        {},
        0.0,
    )
    assert "requests 0" in render(summary)


def test_an_slo_on_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"ttft_any.*'speed'"):
        summarize([record()], slo={"speed": 1.0})


def test_the_report_names_every_metric_and_warning() -> None:
    summary = summarize([record(), record(error="reset")], slo={"e2e": 5.0})
    text = render(summary)
    for part in (*summary.metrics, *summary.warnings, "1 failed (reset 1)", "1 of 2"):
        assert part in text
