"""Carrying an answer out: the timeline against the clock, onto a connection."""

from __future__ import annotations

import asyncio
import math
import time

from tokenmill.bench.mock_counts import Account, Outcome
from tokenmill.bench.mock_frames import DONE, MALFORMED, Frames, error_body, error_frame
from tokenmill.bench.mock_http import Connection, Headers
from tokenmill.bench.mock_job import Job
from tokenmill.bench.mock_text import token
from tokenmill.bench.mock_timeline import Action, timeline

COALESCE = 32
_BROKEN = "the mock was told to break here"


class Answer:
    """One answer on its way. `run` is cancelled when the client leaves; counts are exact at every wait."""

    def __init__(self, job: Job, connection: Connection, account: Account, request_id: str) -> None:
        self._job = job
        self._connection = connection
        self._account = account
        self._headers: Headers = (("x-request-id", request_id),)
        self._frames = Frames(
            chat=job.chat,
            id=("chatcmpl-" if job.chat else "cmpl-") + request_id,
            model=job.model,
            created=int(time.time()),
            prompt_tokens=job.prompt_tokens,
            include_usage=job.stream and job.include_usage,
            continuous=job.stream and job.continuous_usage,
        )
        self._unsent: list[bytes] = []
        self._made = self._delivered = 0

    async def run(self) -> Outcome:
        return await (self._stream() if self._job.stream else self._whole())

    async def _stream(self) -> Outcome:
        """Frames that are due together leave together, at most COALESCE of them."""
        connection, frames = self._connection, self._frames
        started = time.monotonic()
        connection.begin_stream(self._headers)
        self._unsent.append(frames.role())
        out = 0
        for action in timeline(self._job.script, self._job.length, self._job.rng):
            if _wait(started, action) > 0 or action.kind == "reset" or len(self._unsent) >= COALESCE:
                self._write()
                await connection.drain()
                await _until(started, action)
            self._made += action.tokens
            if action.kind == "tokens":
                self._unsent.extend(self._token_frames(out, action.tokens))
                self._delivered += action.tokens
            elif action.kind == "malformed":
                self._unsent.append(MALFORMED)
            out += action.tokens
        return self._end_stream(action, out)

    def _end_stream(self, action: Action, out: int) -> Outcome:
        if action.kind == "reset":
            self._connection.reset()
            return "reset"
        broken = action.kind == "error"
        self._unsent.append(
            error_frame(_BROKEN) if broken else self._frames.last(self._job.finish_reason, out)
        )
        if broken or not self._job.script.omit_done:
            self._unsent.append(DONE)
        self._write()
        self._connection.end_stream()
        return "failed" if broken else "finished"

    def _write(self) -> None:
        """Hands the waiting frames over and counts their tokens."""
        self._connection.write(self._unsent)
        self._account.tokens(self._made, self._delivered)
        self._unsent.clear()
        self._made = self._delivered = 0

    async def _whole(self) -> Outcome:
        started = time.monotonic()
        out = 0
        for action in timeline(self._job.script, self._job.length, self._job.rng):
            if _wait(started, action) > 0:
                await _until(started, action)
            self._account.tokens(action.tokens, 0)
            out += action.tokens
        if action.kind == "reset":
            self._connection.reset()
            return "reset"
        if action.kind == "error":
            self._connection.send(500, error_body(_BROKEN, status=500, code="mock_error"), self._headers)
            return "failed"
        split = min(self._job.script.reasoning_tokens, out)
        texts = [token(self._job.key, index) for index in range(out)]
        reason = self._job.finish_reason
        body = self._frames.answer("".join(texts[split:]), "".join(texts[:split]), reason, out)
        self._connection.send(200, body, self._headers)
        self._account.tokens(0, out)
        return "finished"

    def _token_frames(self, first: int, count: int) -> list[bytes]:
        """One frame; two where the chunk holds the end of the reasoning and the beginning of the answer."""
        split = min(max(self._job.script.reasoning_tokens, first), first + count) if self._job.chat else first
        made: list[bytes] = []
        for start, stop in ((first, split), (split, first + count)):
            if start < stop:
                text = "".join(token(self._job.key, index) for index in range(start, stop))
                made.append(self._frames.tokens(text, stop, reasoning=stop <= split))
        return made


def _wait(started: float, action: Action) -> float:
    """Seconds until the action is due."""
    return math.inf if action.due is None else started + action.due - time.monotonic()


async def _until(started: float, action: Action) -> None:
    if action.due is None:
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(max(0.0, _wait(started, action)))
