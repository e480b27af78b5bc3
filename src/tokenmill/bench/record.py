"""What was seen of one request, and reading a stream into it. No I/O: the caller says when a frame came."""

from __future__ import annotations

from typing import Literal

import msgspec

ErrorKind = Literal[
    "connect",  # no connection
    "http",  # an error status
    "reset",  # the connection broke
    "timeout",  # it took longer than the plan allows
    "malformed",  # a frame or body that is not what the API promises
    "error_frame",  # an error inside the stream
    "truncated",  # the stream ended without a finish reason
    "no_done",  # the stream ended without [DONE]
]


class Record(msgspec.Struct, kw_only=True):
    """One request. Times are seconds from the start of the run; None where it did not get so far.

    Attributes:
        scheduled: when it should have been sent. sent: when it was.
        first_chunk: first frame, with or without a token. first_token: first token of any channel.
        first_content: first token of the answer itself.
        end: [DONE], or whatever else ended it.
        token_times: when each frame with tokens came; `gaps` lie between them.
        gap_tokens: tokens of the frame behind each gap, where the server counts as it goes, else empty.
        completion_tokens, prompt_tokens: the server's own usage.
        cancelled: this client left on purpose.
    """

    index: int
    scheduled: float
    sent: float | None = None
    first_chunk: float | None = None
    first_token: float | None = None
    first_content: float | None = None
    end: float | None = None
    status: int | None = None
    error: ErrorKind | None = None
    detail: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cancelled: bool = False
    retry_after: str | None = None
    text: str | None = None
    token_times: list[float] = msgspec.field(default_factory=list)
    gap_tokens: list[int] = msgspec.field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.error is None and not self.cancelled

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive frames with tokens."""
        return [
            later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False)
        ]

    @property
    def tokens(self) -> int:
        """The server's count, else the number of frames with tokens."""
        return len(self.token_times) if self.completion_tokens is None else self.completion_tokens

    def fail(self, kind: ErrorKind, detail: str = "") -> None:
        """The first failure stands."""
        if self.error is None:
            self.error, self.detail = kind, detail[:200]


class _Channel(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Channel | None = None
    message: _Channel | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decoder = msgspec.json.Decoder(_Answer)


class StreamReader:
    """Reads the frames of one stream into its record."""

    def __init__(self, record: Record, *, keep_text: bool = False) -> None:
        self._record = record
        self._counted = 0
        self.done = False
        if keep_text:
            record.text = ""

    def frame(self, data: bytes, now: float) -> None:
        """One event's data, which came at `now`."""
        record = self._record
        if record.first_chunk is None:
            record.first_chunk = now
        if data == b"[DONE]":
            self.done = True
            record.end = now
            return
        try:
            answer = _decoder.decode(data)
        except msgspec.MsgspecError as error:
            record.fail("malformed", str(error))
            return
        if answer.error is not None:
            record.fail("error_frame", msgspec.json.encode(answer.error).decode())
        if answer.usage is not None:
            record.prompt_tokens = answer.usage.prompt_tokens
            record.completion_tokens = answer.usage.completion_tokens
        for choice in answer.choices:
            self._choice(choice, answer.usage, now)

    def finish(self, now: float) -> None:
        """The stream has ended in good order."""
        if self._record.end is None:
            self._record.end = now
        if self._record.finish_reason is None:
            self._record.fail("truncated", "the stream ended without a finish reason")
        elif not self.done:
            self._record.fail("no_done", "the stream ended without [DONE]")

    def _choice(self, choice: _Choice, usage: _Usage | None, now: float) -> None:
        record = self._record
        if choice.finish_reason is not None:
            record.finish_reason = choice.finish_reason
        content, other = _channels(choice)
        if content or other:
            if record.first_token is None:
                record.first_token = now
            elif usage is not None and self._counted:
                record.gap_tokens.append(usage.completion_tokens - self._counted)
            record.token_times.append(now)
            self._counted = usage.completion_tokens if usage is not None else 0
        if content:
            if record.first_content is None:
                record.first_content = now
            if record.text is not None:
                record.text += content


def read_whole(record: Record, body: bytes, now: float, *, keep_text: bool = False) -> None:
    """The body of an answer that did not stream."""
    record.end = now
    try:
        answer = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        record.fail("malformed", str(error))
        return
    if answer.usage is not None:
        record.prompt_tokens = answer.usage.prompt_tokens
        record.completion_tokens = answer.usage.completion_tokens
    if not answer.choices:
        record.fail("malformed", "the answer has no choices")
        return
    record.finish_reason = answer.choices[0].finish_reason
    if record.finish_reason is None:
        record.fail("truncated", "the answer has no finish reason")
    if keep_text:
        record.text = _channels(answer.choices[0])[0]


def _channels(choice: _Choice) -> tuple[str, bool]:
    """(text of the answer itself, whether any other channel said something)."""
    channel = choice.delta or choice.message
    if channel is None:
        return choice.text or "", False
    other = bool(channel.reasoning_content or channel.reasoning or channel.tool_calls)
    return channel.content or "", other
