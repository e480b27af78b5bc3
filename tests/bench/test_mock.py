"""The mock over real sockets, read by the official client and by bare HTTP."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping

import aiohttp
import openai
import pytest

from support.waiting import until, until_steady
from tokenmill.bench.mock import MockServer
from tokenmill.bench.mock_counts import Counts, Tally
from tokenmill.bench.mock_script import MockScript
from tokenmill.bench.mock_text import expected_text, with_directive

PROMPT = "count to ten"
CHAT = {"model": "mock", "messages": [{"role": "user", "content": PROMPT}]}


def official(server: MockServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="key-a", max_retries=0)


async def post(
    session: aiohttp.ClientSession,
    server: MockServer,
    headers: Mapping[str, str] | None = None,
    **fields: object,
) -> tuple[int, dict[str, str], str]:
    async with session.post(
        server.url + "/v1/chat/completions", json={**CHAT, **fields}, headers=headers
    ) as answer:
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.text()


async def test_the_official_client_reads_stream_and_whole_answer_alike() -> None:
    async with MockServer(MockScript(seed=3)) as server, official(server) as client:
        whole = await client.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": PROMPT}], max_tokens=8
        )
        stream = await client.chat.completions.create(
            model="mock",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = expected_text(3, PROMPT, 8)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 8, 11)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


async def test_completions_take_text_and_token_ids() -> None:
    async with MockServer() as server, official(server) as client:
        text = await client.completions.create(model="mock", prompt=PROMPT, max_tokens=4)
        ids = await client.completions.create(model="mock", prompt=[1, 2, 3, 4, 5], max_tokens=4)
        stream = await client.completions.create(model="mock", prompt=PROMPT, max_tokens=4, stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert text.choices[0].text == streamed == expected_text(0, PROMPT, 4)
    assert ids.choices[0].text == expected_text(0, [1, 2, 3, 4, 5], 4)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 5


async def test_models_and_health() -> None:
    async with MockServer(MockScript(models=("a", "b/c"))) as server, official(server) as client:
        assert [model.id async for model in client.models.list()] == ["a", "b/c"]
        async with aiohttp.ClientSession() as session, session.get(server.url + "/health") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})
        async with aiohttp.ClientSession() as session, session.get(server.url + "/nowhere") as answer:
            assert answer.status == 404


async def test_a_script_decides_length_reason_and_reasoning() -> None:
    script = MockScript(output_tokens=6, reasoning_tokens=2, tokens_per_chunk=3)
    async with MockServer(script) as server, aiohttp.ClientSession() as session:
        _, _, streamed = await post(session, server, stream=True, max_tokens=50)
        _, _, whole = await post(session, server, max_tokens=50)
    frames = [json.loads(line[6:]) for line in streamed.split("\n\n") if line.startswith("data: {")]
    deltas = [frame["choices"][0]["delta"] for frame in frames]
    words = expected_text(0, PROMPT, 6).split(" ")[1:]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": f" {words[0]} {words[1]}"},
        {"content": f" {words[2]}"},
        {"content": f" {words[3]} {words[4]} {words[5]}"},
        {},
    ]
    assert frames[-1]["choices"][0]["finish_reason"] == "stop"
    assert json.loads(whole)["choices"][0]["message"]["reasoning_content"] == f" {words[0]} {words[1]}"


@pytest.mark.parametrize("way", ["header", "prompt", "script"])
async def test_errors_before_the_start_come_from_server_header_or_prompt(way: str) -> None:
    fault = '{"error_status": 429, "retry_after_s": 2}'
    async with MockServer() as server, aiohttp.ClientSession() as session:
        headers: dict[str, str] = {}
        messages = CHAT["messages"]
        if way == "header":
            headers["x-mock"] = fault
        elif way == "prompt":
            messages = [{"role": "user", "content": with_directive(PROMPT, fault)}]
        else:
            async with session.post(server.url + "/mock/script", data=fault) as answer:
                assert (await answer.json())["error_status"] == 429
        status, got, text = await post(session, server, headers, messages=messages)
        assert (status, got["retry-after"]) == (429, "2")
        assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
        assert server.counts.total == Tally(requests=1, refused=1)


async def test_a_request_that_makes_no_sense_is_refused_and_counted() -> None:
    async with MockServer() as server, aiohttp.ClientSession() as session:
        wrong: list[dict[str, object]] = [{"messages": []}, {"messages": 3}, {"n": 2}, {"max_tokens": 0}]
        for fields in wrong:
            status, _, text = await post(session, server, None, **fields)
            assert status == 400, text
        status, _, _ = await post(session, server, {"x-mock": '{"speed": 9}'})
        assert status == 400
        assert server.counts.total == Tally(requests=5, refused=5)


async def test_usage_can_be_refused() -> None:
    async with MockServer(MockScript(refuse_usage=True)) as server, aiohttp.ClientSession() as session:
        refused, _, text = await post(session, server, stream=True, stream_options={"include_usage": True})
        accepted, _, _ = await post(session, server, stream=True)
    assert (refused, accepted) == (400, 200)
    assert json.loads(text)["error"]["param"] == "stream_options"


async def test_faults_can_hit_the_first_requests_alone() -> None:
    async with (
        MockServer(MockScript(error_status=503, fault_first=2)) as server,
        aiohttp.ClientSession() as session,
    ):
        assert [(await post(session, server))[0] for _ in range(4)] == [503, 503, 200, 200]


async def test_an_unusable_script_is_refused_and_changes_nothing() -> None:
    async with MockServer() as server, aiohttp.ClientSession() as session:
        async with session.post(server.url + "/mock/script", data=b'{"ttft_ms": 5}') as answer:
            assert answer.status == 400
            assert "ttft_ms" in (await answer.json())["error"]["message"]
        assert server.script == MockScript()


async def test_counts_are_kept_by_request_key_and_user_and_can_be_reset() -> None:
    async with MockServer() as server, aiohttp.ClientSession() as session:
        for request_id, key, user in (("r1", "ka", "ua"), ("r2", "ka", "ub"), ("r2", "kb", "ub")):
            headers = {"x-request-id": request_id, "authorization": f"Bearer {key}"}
            _, got, _ = await post(session, server, headers, user=user, max_tokens=5)
            assert got["x-request-id"] == request_id
        async with session.get(server.url + "/mock/counts") as answer:
            counts = await answer.json()
        one = {"requests": 1, "finished": 1, "prompt_tokens": 3, "generated_tokens": 5, "delivered_tokens": 5}
        two = {name: 2 * value for name, value in one.items()}
        kept = {
            name: {key: {n: v for n, v in tally.items() if v} for key, tally in counts[name].items()}
            for name in ("by_request", "by_key", "by_user")
        }
        assert kept == {
            "by_request": {"r1": one, "r2": two},
            "by_key": {"ka": two, "kb": one},
            "by_user": {"ua": one, "ub": two},
        }
        async with session.post(server.url + "/mock/reset") as answer:
            assert answer.status == 200
        assert server.counts == Counts()


async def test_slots_run_so_many_at_once_and_refuse_behind_the_queue() -> None:
    script = MockScript(slots=1, max_waiting=1, stall_after=0)
    async with MockServer(script) as server, aiohttp.ClientSession() as session:
        held = asyncio.create_task(post(session, server))
        await until(lambda: server.counts.running == 1)
        queued = asyncio.create_task(post(session, server, {"x-mock": '{"stall_after": null}'}))
        await until(lambda: server.counts.waiting == 1)
        status, _, _ = await post(session, server)
        assert status == 503
        held.cancel()
        assert (await queued)[0] == 200
        await until(lambda: server.counts.running == 0)
        assert server.counts.total == Tally(
            requests=3,
            finished=1,
            refused=1,
            disconnected=1,
            prompt_tokens=6,
            generated_tokens=16,
            delivered_tokens=16,
        )


async def test_a_client_that_leaves_the_queue_never_generates() -> None:
    async with MockServer(MockScript(slots=1, stall_after=0)) as server, aiohttp.ClientSession() as session:
        held = asyncio.create_task(post(session, server))
        await until(lambda: server.counts.running == 1)
        queued = asyncio.create_task(post(session, server))
        await until(lambda: server.counts.waiting == 1)
        queued.cancel()
        await until(lambda: server.counts.waiting == 0)
        assert (
            server.counts.running,
            server.counts.total.disconnected,
            server.counts.total.prompt_tokens,
        ) == (1, 1, 3)
        held.cancel()


async def test_a_whole_answer_given_up_is_generated_and_not_delivered() -> None:
    async with MockServer(MockScript(stall_after=4)) as server, aiohttp.ClientSession() as session:
        task = asyncio.create_task(post(session, server, max_tokens=9))
        await until(lambda: server.counts.total.generated_tokens == 4)
        task.cancel()
        await until(lambda: server.counts.total.disconnected == 1)
        assert server.counts.total.delivered_tokens == 0


async def test_a_slow_reader_holds_the_mock_back() -> None:
    # 200000 tokens are 40 MB of frames: far more than sockets hold.
    async with MockServer() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        body = json.dumps({**CHAT, "stream": True, "max_tokens": 200_000}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await reader.readexactly(1000)
        await until_steady(lambda: server.counts.total.generated_tokens)
        assert server.counts.total.generated_tokens < 150_000
        writer.transport.abort()
        await until(lambda: server.counts.total.disconnected == 1)


async def test_stopping_the_server_cuts_what_runs() -> None:
    server = MockServer(MockScript(stall_after=0))
    await server.start()
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(post(session, server))
        await until(lambda: server.counts.running == 1)
        await server.close()
        with pytest.raises(aiohttp.ClientError):
            await task
    assert server.counts.total.reset == 1
    assert server.counts.running == 0


async def test_as_a_process_it_says_ready_serves_and_ends_on_sigterm() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tokenmill.bench.mock", "--port", "0", "--json", "--script", '{"seed": 4}',
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    ready = json.loads(await process.stdout.readline())
    assert ready["event"] == "ready"
    async with openai.AsyncOpenAI(base_url=ready["url"] + "/v1", api_key="x", max_retries=0) as client:
        answer = await client.completions.create(model=ready["model"], prompt=PROMPT, max_tokens=3)
    assert answer.choices[0].text == expected_text(4, PROMPT, 3)
    os.kill(process.pid, signal.SIGTERM)
    assert await process.wait() == 0
