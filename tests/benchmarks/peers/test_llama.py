from __future__ import annotations

import json

import pytest

from benchmarks.peers.contender import PeerFailed
from benchmarks.peers.llama import bench_flags, bench_rate
from benchmarks.peers.rows import Row

TOTAL = Row("streams-4", "total", 4, 128, 128, 1.4, repeats=2)
PREFILL = Row("prefill-1024", "prefill", 1, 1024, 1, 1.8)
DECODE = Row("decode-16", "decode", 16, 960, 128, 2.0)

# A line as the program prints it, without the keys that nobody reads.
LINE = {"n_kv_max": 1024, "pp": 128, "tg": 128, "pl": 4, "t_pp": 0.5, "t_tg": 1.5, "speed": 529.070618}


def printed(*lines: dict[str, float]) -> bytes:
    return b"\n".join(json.dumps(line).encode() for line in lines) + b"\n\n"


def test_a_total_is_output_tokens_over_the_time_of_prefill_and_decoding() -> None:
    # 4 x 128 / (0.5 + 1.5) and 4 x 128 / (0.5 + 1.1); their median is the mean of the two.
    assert bench_rate(TOTAL, printed(LINE, LINE | {"t_tg": 1.1})) == pytest.approx((256 + 320) / 2)


def test_prefill_is_prompt_tokens_over_its_own_time() -> None:
    line = LINE | {"pp": 1024, "tg": 1, "pl": 1, "t_pp": 0.8}
    assert bench_rate(PREFILL, printed(line)) == pytest.approx(1280)


def test_decoding_leaves_prefill_out() -> None:
    line = LINE | {"pp": 960, "pl": 16, "t_pp": 10.0, "t_tg": 8.0}
    assert bench_rate(DECODE, printed(line)) == pytest.approx(16 * 128 / 8)


def test_other_lines_are_passed_over() -> None:
    assert bench_rate(PREFILL, b"warning: slow\n" + printed(LINE | {"pp": 1024, "tg": 1, "pl": 1})) == 2048


@pytest.mark.parametrize("lines", [[], [LINE], [LINE, LINE | {"pl": 3}]])
def test_runs_that_are_missing_or_others_are_refused(lines: list[dict[str, float]]) -> None:
    with pytest.raises(PeerFailed, match="of 2, or others"):
        bench_rate(TOTAL, printed(*lines))


def test_the_context_holds_every_stream_whole() -> None:
    flags = bench_flags(TOTAL)
    assert flags[flags.index("-c") + 1] == "1024"
    assert flags[flags.index("-npl") + 1] == "4,4"
    assert "-pps" not in flags


def test_one_prompt_is_shared_where_decoding_alone_is_timed() -> None:
    assert "-pps" in bench_flags(DECODE)
