from __future__ import annotations

import pytest

from benchmarks.peers.contender import Figures, PeerFailed
from benchmarks.peers.results import HTTP_METRICS, Line, Rounds, lines
from benchmarks.peers.rows import ROWS, Row

STREAMS = Row("streams-16", "total", 16, 128, 128, 2.0)
HTTP = Row("http-32", "http", 32, 128, 128, 2.0)


def rates(*values: float) -> list[Figures | PeerFailed]:
    return [{"tokens_per_s": value} for value in values]


def one(rounds: Rounds) -> Line:
    (line,) = lines(STREAMS, rounds, "ours")
    return line


def http(rate: float, ttft: float, gap: float) -> list[Figures | PeerFailed]:
    latencies = {"ttft_p50_s": ttft, "ttft_p99_s": ttft, "gap_p50_s": gap, "gap_p99_s": gap}
    return [{"tokens_per_s": rate, **latencies}]


def test_medians_are_compared_and_the_fastest_rival_counts() -> None:
    line = one({"ours": rates(900, 1100, 1000), "slow": rates(100, 100, 100), "fast": rates(390, 1000, 400)})
    assert (line.ours, line.best_rival, line.best) == (1000, "fast", 400)
    assert line.ratio == 2.5
    assert line.met is True


def test_a_ratio_below_the_target_is_missed() -> None:
    line = one({"ours": rates(799), "rival": rates(400)})
    assert line.ratio == pytest.approx(1.9975)
    assert line.met is False


def test_a_rival_that_failed_in_every_round_is_named_with_its_first_reason() -> None:
    line = one({"ours": rates(1000), "rival": [PeerFailed("no room"), PeerFailed("no time")]})
    assert line.contenders["rival"].failed == "no room"
    assert line.contenders["rival"].median is None
    assert (line.best_rival, line.ratio, line.met) == (None, None, None)


def test_a_rival_that_failed_once_counts_with_the_rounds_it_did() -> None:
    line = one({"ours": rates(1000), "rival": [*rates(400), PeerFailed("no time"), *rates(600)]})
    assert line.contenders["rival"].median == 500
    assert line.contenders["rival"].rounds == [400, 600]
    assert line.contenders["rival"].failed == "no time"
    assert line.ratio == 2


def test_no_ratio_without_a_figure_of_ours() -> None:
    line = one({"ours": [PeerFailed("broken")], "rival": rates(400)})
    assert (line.ours, line.ratio, line.met, line.best) == (None, None, None, 400)


def test_no_ratio_without_rivals() -> None:
    assert one({"ours": rates(1000)}).ratio is None


def test_latencies_are_held_against_the_lowest_of_any_rival() -> None:
    found = lines(
        HTTP,
        {"ours": http(900, 1.0, 0.05), "quick": http(100, 0.8, 0.04), "wide": http(400, 3.0, 0.06)},
        "ours",
    )
    by_metric = {line.metric: line for line in found}
    assert tuple(by_metric) == HTTP_METRICS
    assert (by_metric["tokens_per_s"].best_rival, by_metric["tokens_per_s"].met) == ("wide", True)
    assert by_metric["ttft_p99_s"].best_rival == "quick"
    assert by_metric["ttft_p99_s"].ratio == pytest.approx(1.25)
    assert by_metric["ttft_p99_s"].met is False
    assert by_metric["ttft_p50_s"].target is None


def test_rows_are_those_the_targets_are_set_for() -> None:
    targets = {row.name: row.target for row in ROWS}
    assert targets == {
        "streams-1": 1.0,
        "streams-4": 1.4,
        "streams-16": 2.0,
        "streams-32": 2.5,
        "prefill-1024": 1.8,
        "decode-16": 2.0,
        "http-32": 2.0,
    }
    decode = next(row for row in ROWS if row.name == "decode-16")
    contexts = range(decode.prompt_tokens + 1, decode.prompt_tokens + decode.output_tokens + 1)
    assert sum(contexts) / len(contexts) == pytest.approx(1024, abs=1)
