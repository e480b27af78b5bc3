"""The load client against the mock over real sockets: both counted separately, the numbers must be equal."""

import asyncio
import json
import socket
import sys
from dataclasses import replace

import msgspec
import pytest

from support.waiting import until
from tokenmill.bench import client
from tokenmill.bench.arrivals import Closed, Open
from tokenmill.bench.client import LoadResult, run_load
from tokenmill.bench.client_options import read_options
from tokenmill.bench.distribution import parse
from tokenmill.bench.mock import MockServer
from tokenmill.bench.mock_counts import Tally
from tokenmill.bench.mock_script import MockScript
from tokenmill.bench.mock_text import count_tokens, expected_text
from tokenmill.bench.plan import LoadPlan
from tokenmill.bench.record import Record
from tokenmill.bench.workload import Workload

MIX = Workload(parse("uniform:1:60"), parse("uniform:1:30"), seed=1)


def plan(server: MockServer, users: int = 4, requests: int = 20, **changes: object) -> LoadPlan:
    made = LoadPlan(server.url, Closed(users), MIX, max_requests=requests, keep_text=True, timeout_s=60.0)
    return replace(made, **changes)  # type: ignore[arg-type]  # each test names fields of LoadPlan


def sums(result: LoadResult) -> tuple[int, int, int]:
    """(succeeded, prompt tokens, output tokens) as the client counted them."""
    summary = result.summarize()
    return summary.succeeded, summary.prompt_tokens, summary.output_tokens


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_client_and_mock_agree_on_every_count_and_every_character(api: str, stream: bool) -> None:
    async with MockServer(MockScript(seed=9)) as server:
        result = await run_load(plan(server, api=api, stream=stream))
        total = server.counts.total
    assert sums(result) == (20, total.prompt_tokens, total.delivered_tokens)
    assert total == Tally(
        requests=20,
        finished=20,
        prompt_tokens=sum(count_tokens(MIX.item(index).prompt) for index in range(20)),
        generated_tokens=sum(MIX.item(index).max_tokens for index in range(20)),
        delivered_tokens=total.generated_tokens,
    )
    for record, item in zip(result.records, MIX.items(), strict=False):
        assert record.text == expected_text(9, item.prompt, item.max_tokens)


async def test_token_ids_are_exact() -> None:
    ids = Workload(parse("uniform:1:60"), parse(3), token_ids=True)
    async with MockServer() as server:
        result = await run_load(plan(server, api="completions", workload=ids))
    assert [r.prompt_tokens for r in result.records] == [len(ids.item(index).prompt) for index in range(20)]


async def test_running_counts_make_the_tokens_of_every_gap_exact() -> None:
    fixed = Workload(parse(5), parse(8))
    async with MockServer(MockScript(tokens_per_chunk=3)) as server:
        counted = await run_load(plan(server, continuous_usage=True, workload=fixed))
        uncounted = await run_load(plan(server, workload=fixed))
    assert all(record.gap_tokens == [3, 2] for record in counted.records)
    assert counted.summarize().itl_exact == 1.0
    assert uncounted.summarize().itl_exact == 0.0
    assert all(record.tokens == 8 for record in uncounted.records)


async def test_times_follow_the_script() -> None:
    # Not before the mock may send, which a clock that starts or stops at the wrong place would break.
    script = MockScript(ttft_s=0.1, gap_s=0.03, reasoning_tokens=1)
    async with MockServer(script) as server:
        result = await run_load(plan(server, users=2, requests=2, workload=Workload(parse(3), parse(4))))
    for record in result.records:
        assert record.sent is not None
        assert record.first_chunk is not None
        assert record.first_token is not None
        assert record.first_content is not None
        assert record.end is not None
        assert record.first_chunk < record.first_token < record.first_content < record.end
        assert record.first_token - record.sent >= 0.099
        assert record.first_content - record.sent >= 0.129
        assert record.end - record.sent >= 0.189
        assert len(record.gaps) == 3


async def test_resets_leave_exactly_the_tokens_before_them() -> None:
    workload = Workload(parse("uniform:1:60"), parse("uniform:6:30"), seed=1)
    async with MockServer(MockScript(reset_after=5)) as server:
        result = await run_load(plan(server, workload=workload))
        total = server.counts.total
    assert {(record.error, record.tokens) for record in result.records} == {("reset", 5)}
    assert (total.reset, total.delivered_tokens, total.generated_tokens) == (20, 100, 100)
    for record, item in zip(result.records, workload.items(), strict=False):
        assert record.text == expected_text(0, item.prompt, 5)


async def test_a_reset_before_anything_is_told_from_no_connection() -> None:
    async with MockServer(MockScript(reset_after=0)) as server:
        reset = await run_load(plan(server, requests=2))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = LoadPlan(f"http://127.0.0.1:{unused.getsockname()[1]}", Closed(1), MIX, max_requests=1)
        refused = await run_load(nobody)
    assert [record.error for record in reset.records] == ["reset", "reset"]
    assert [record.error for record in refused.records] == ["connect"]


async def test_cancelled_requests_are_seen_as_disconnects_with_the_same_tokens() -> None:
    # The mock stalls where the client leaves, so neither can be a token ahead of the other.
    long = replace(MIX, output_tokens=parse(50))
    async with MockServer(MockScript(stall_after=7)) as server:
        result = await run_load(plan(server, workload=long, cancel_share=1.0, cancel_after=7))
        await until(lambda: server.counts.total.disconnected == 20)
        total = server.counts.total
    summary = result.summarize()
    assert (summary.cancelled, summary.failed, summary.succeeded) == (20, 0, 0)
    assert summary.output_tokens == total.delivered_tokens == total.generated_tokens == 140
    assert (total.requests, total.finished, server.counts.running) == (20, 0, 0)


async def test_only_the_share_asked_for_is_cancelled() -> None:
    long = replace(MIX, output_tokens=parse(50))
    async with MockServer(MockScript(gap_s=0.002)) as server:
        result = await run_load(
            plan(server, users=50, requests=200, workload=long, cancel_share=0.25, cancel_after=2)
        )
        await until(lambda: server.counts.running == 0)
        total = server.counts.total
    cancelled = [record for record in result.records if record.cancelled]
    assert 30 <= len(cancelled) <= 70
    assert (total.disconnected, total.finished) == (len(cancelled), 200 - len(cancelled))
    finished = sum(record.tokens for record in result.records if not record.cancelled)
    assert finished == 50 * total.finished
    assert total.delivered_tokens >= finished + 2 * len(cancelled)


async def test_stalls_end_in_timeouts_and_count_as_disconnects() -> None:
    async with MockServer(MockScript(stall_after=3)) as server:
        stalled = await run_load(
            plan(server, requests=4, workload=replace(MIX, output_tokens=parse(9)), timeout_s=0.6)
        )
        await until(lambda: server.counts.total.disconnected == 4)
        total = server.counts.total
    assert [(r.error, r.tokens) for r in stalled.records] == [("timeout", 3)] * 4
    assert (total.generated_tokens, total.delivered_tokens) == (12, 12)


async def test_a_stall_that_ends_shows_as_one_long_gap() -> None:
    async with MockServer(MockScript(stall_after=2, stall_s=0.2)) as server:
        (record,) = (await run_load(plan(server, requests=1, workload=Workload(parse(2), parse(5))))).records
    assert record.ok
    assert max(record.gaps) == record.gaps[1] >= 0.19


@pytest.mark.parametrize(
    ("script", "error", "status"),
    [
        (MockScript(error_status=429, retry_after_s=3), "http", 429),
        (MockScript(error_status=500), "http", 500),
        (MockScript(error_status=503), "http", 503),
        (MockScript(error_after=2), "error_frame", 200),
        (MockScript(malformed_after=2), "malformed", 200),
        (MockScript(omit_done=True), "no_done", 200),
        (MockScript(refuse_usage=True), "http", 400),
    ],
)
async def test_each_fault_is_recorded_by_its_kind(script: MockScript, error: str, status: int) -> None:
    workload = replace(MIX, output_tokens=parse(5))
    async with MockServer(script) as server:
        result = await run_load(plan(server, requests=6, workload=workload))
        total = server.counts.total
    assert {(record.error, record.status) for record in result.records} == {(error, status)}
    assert total.requests == 6 == total.refused + total.failed + total.finished
    assert result.records[0].retry_after == ("3" if script.retry_after_s else None)
    frames = sum(len(record.token_times) for record in result.records)
    assert frames == total.delivered_tokens
    if error == "malformed":
        assert total.generated_tokens == total.delivered_tokens + 6


async def test_a_server_that_refuses_usage_is_measured_by_frames() -> None:
    async with MockServer(MockScript(refuse_usage=True)) as server:
        result = await run_load(plan(server, usage=False))
        assert result.summarize().output_tokens == server.counts.total.delivered_tokens
    assert all(record.completion_tokens is None and record.ok for record in result.records)


async def test_users_never_have_two_requests_at_once() -> None:
    async with MockServer(MockScript(ttft_s=0.005)) as server:
        result = await run_load(plan(server, users=3, requests=30))
    assert most_at_once(result.records) == most_at_once(result.records, due=True) == 3


async def test_an_open_loop_counts_from_the_schedule() -> None:
    # Three arrive at 0 and 0.01 s; one at a time may run, so the last one waits for two answers of 0.1 s.
    async with MockServer(MockScript(ttft_s=0.1)) as server:
        late = await run_load(plan(server, load=Open(times=(0.0, 0.0, 0.01)), max_in_flight=1, requests=3))
    assert [record.scheduled for record in late.records] == [0.0, 0.0, 0.01]
    assert most_at_once(late.records) == 1
    summary = late.summarize()
    assert summary.metrics["client_delay"].max >= 0.18
    assert summary.metrics["e2e_from_schedule"].max >= 0.28
    assert summary.metrics["e2e_from_schedule"].max == pytest.approx(
        max((record.end or 0) - record.scheduled for record in late.records)
    )


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    async with MockServer(MockScript(stall_after=0)) as server:
        running = asyncio.create_task(run_load(plan(server, load=Open(rate=1000.0), requests=40)))
        await until(lambda: server.counts.running == 40)
        running.cancel()
        await until(lambda: server.counts.total.disconnected == 40)


async def test_arrivals_without_room_are_counted_and_the_run_still_ends() -> None:
    async with MockServer(MockScript(stall_after=0)) as server:
        result = await run_load(
            plan(
                server,
                load=Open(rate=100.0, burstiness=float("inf")),
                requests=1000,
                max_seconds=0.2,
                timeout_s=0.5,
                max_in_flight=2,
            )
        )
    assert len(result.records) == 2
    assert result.unsent == 19  # due at 0.02, 0.03, ..., 0.20


async def test_a_closed_loop_stops_at_its_time() -> None:
    async with MockServer(MockScript(ttft_s=0.01)) as server:
        result = await run_load(plan(server, requests=100_000, max_seconds=0.2))
    assert 0 < len(result.records) < 1000
    assert all(record.scheduled < 0.2 for record in result.records)


async def test_headers_say_who_asks() -> None:
    async with MockServer() as server:
        plans = [
            plan(server, headers={"authorization": f"Bearer {key}"}, requests=count)
            for key, count in (("a", 3), ("b", 5))
        ]
        await asyncio.gather(*map(run_load, plans))
        assert {key: tally.requests for key, tally in server.counts.by_key.items()} == {"a": 3, "b": 5}


async def test_extra_fields_are_added_and_taken_out() -> None:
    body = LoadPlan("http://x", extra={"ignore_eos": None, "top_k": 5}).body(MIX.item(0))
    assert "ignore_eos" not in body
    assert body["top_k"] == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ["--users", "0"],
        ["--rate", "0"],
        ["--rate", "1", "--requests", "0"],
        ["--users", "1", "--prompt-tokens", "many"],
        ["--users", "1", "--token-ids"],
        ["--users", "1", "--slo", "speed=1"],
        ["--users", "1", "--slo", "ttft_any"],
        ["--users", "1", "--extra", "[]"],
        ["--users", "1", "--cancel-share", "2"],
        ["--users", "1", "--think", "-1"],
        ["--trace", "no such file"],
    ],
)
def test_options_that_cannot_be_used_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert client.main(["--url", "http://127.0.0.1:9", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_options_become_a_plan() -> None:
    options = read_options(
        [
            "--url",
            "http://h/v1/",
            "--rate",
            "5",
            "--burstiness",
            "0.5",
            "--slo",
            "ttft_any=0.5",
            "--api-key",
            "k",
        ]
    )
    assert options.plan.endpoint == "http://h/v1/chat/completions"
    assert options.plan.load == Open(5.0, 0.5)
    assert options.plan.headers == {"authorization": "Bearer k"}
    assert options.slo == {"ttft_any": 0.5}


async def test_as_a_process_it_prints_a_summary_in_json_and_not_the_key() -> None:
    async with MockServer() as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tokenmill.bench.client", "--url", server.url, "--users", "2",
            "--requests", "7", "--output-tokens", "5", "--api-key", "secret", "--json", "--records",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        total = server.counts.by_key["secret"]
    assert process.returncode == 0
    document = json.loads(out)
    assert document["plan"]["model"] == "mock"
    assert b"secret" not in out
    assert document["summary"]["succeeded"] == total.finished == 7
    assert document["summary"]["output_tokens"] == total.delivered_tokens == 35
    requests = msgspec.convert(document["requests"], list[Record])
    assert [record.index for record in requests] == list(range(7))


def most_at_once(records: list[Record], *, due: bool = False) -> int:
    """Requests in flight together at most, from when they were due or sent.

    One that ends when another starts is not with it.
    """
    starts = [record.scheduled if due else (record.sent or 0.0) for record in records]
    edges = sorted([((record.end or 0.0), -1) for record in records] + [(start, 1) for start in starts])
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most
