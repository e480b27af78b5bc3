from __future__ import annotations

from msgspec.structs import replace

from benchmarks.peers.contender import Figures, PeerFailed
from benchmarks.peers.results import lines
from benchmarks.peers.rows import Row
from benchmarks.peers.table import render

STREAMS = Row("streams-16", "total", 16, 128, 128, 2.0)
HTTP = Row("http-32", "http", 32, 128, 128, 2.0)


def test_a_row_shows_ours_the_best_rival_the_ratio_and_every_rival() -> None:
    (line,) = lines(
        STREAMS,
        {"ours": [{"tokens_per_s": 1000}], "a": [{"tokens_per_s": 250}], "b": [{"tokens_per_s": 400}]},
        "ours",
    )
    header, row = render([replace(line, fractions={"limit": 0.42})], "ours").splitlines()
    assert header.split() == ["ours", "best", "rival", "ratio", "target", "of", "limit", "a", "b"]
    assert row.split() == [
        *("streams-16", "tok/s", "1000.0", "b", "2.50", ">=", "2", "met", "42%", "250.0", "400.0")
    ]


def test_latencies_are_in_their_own_units() -> None:
    figures = {
        "tokens_per_s": 500.0,
        "ttft_p50_s": 1.5,
        "ttft_p99_s": 2.5,
        "gap_p50_s": 0.0456,
        "gap_p99_s": 0.0999,
    }
    text = render(lines(HTTP, {"ours": [figures], "a": [figures]}, "ours"), "ours")
    rows = [line.split() for line in text.splitlines()]
    assert rows[3][:5] == ["http-32", "TTFT", "P99", "(s)", "2.50"]
    assert rows[4][:5] == ["http-32", "gap", "P50", "(ms)", "45.6"]
    assert rows[5][5:10] == ["a", "1.00", "<=", "1", "met"]


def test_a_failure_is_named_with_its_rows_and_reason() -> None:
    failed = PeerFailed("ended with code 1: out of memory")
    found = [
        *lines(STREAMS, {"ours": [{"tokens_per_s": 1000}], "a": [failed]}, "ours"),
        *lines(HTTP, {"ours": [failed], "a": [failed]}, "ours"),
    ]
    text = render(found, "ours").splitlines()
    assert text[1].split()[-1] == "failed"
    assert text[-2:] == [
        "a, streams-16, http-32: ended with code 1: out of memory",
        "ours, http-32: ended with code 1: out of memory",
    ]


def test_a_failure_in_one_round_of_several_says_how_many_were_done() -> None:
    rounds: list[Figures | PeerFailed] = [
        {"tokens_per_s": 400.0},
        PeerFailed("no time"),
        {"tokens_per_s": 410.0},
    ]
    text = render(
        lines(STREAMS, {"ours": [{"tokens_per_s": 1000}], "a": rounds}, "ours"), "ours"
    ).splitlines()
    assert text[1].split()[-1] == "405.0"
    assert text[-1] == "a, streams-16 (2 rounds done): no time"
