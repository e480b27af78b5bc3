"""The bytes a mock answers with, in the two dialects."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

DONE = b"data: [DONE]\n\n"
MALFORMED = b'data: {"choices": [{"delta": {"content": \n\n'


def error_body(message: str, *, status: int, code: str, param: str | None = None) -> bytes:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_frame(message: str) -> bytes:
    return b"data: %b\n\n" % error_body(message, status=500, code="mock_error")


@dataclass(frozen=True)
class Frames:
    """Frames of one answer. Token text must be plain ASCII that JSON does not escape.

    `include_usage` adds `usage: null` to chunks and the last chunk with the counts; `continuous` puts the
    counts so far into every chunk, as vLLM's `continuous_usage_stats` does.
    """

    chat: bool
    id: str
    model: str
    created: int
    prompt_tokens: int
    include_usage: bool = False
    continuous: bool = False

    def role(self) -> bytes:
        """The first frame: no token, nothing at all in the completions dialect."""
        return self._frame(b'"delta":{"role":"assistant","content":""}', b"null", 0) if self.chat else b""

    def tokens(self, text: str, so_far: int, *, reasoning: bool = False) -> bytes:
        """New tokens; `so_far` counts the answer's tokens, these included."""
        if not self.chat:
            return self._frame(b'"text":"%b"' % text.encode(), b"null", so_far)
        channel = b"reasoning_content" if reasoning else b"content"
        return self._frame(b'"delta":{"%b":"%b"}' % (channel, text.encode()), b"null", so_far)

    def last(self, finish_reason: str, tokens: int) -> bytes:
        """The frame with the finish reason, and the usage frame where it was asked for."""
        empty = b'"delta":{}' if self.chat else b'"text":""'
        frame = self._frame(empty, b'"%b"' % finish_reason.encode(), tokens)
        if self.include_usage:
            frame += b'data: {%b,"choices":[],"usage":%b}\n\n' % (self._head(), self._usage(tokens))
        return frame

    def answer(self, text: str, reasoning: str, finish_reason: str, tokens: int) -> bytes:
        """The whole answer of a request that does not stream."""
        message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        choice = msgspec.json.encode({"message": message} if self.chat else {"text": text})
        return b'{%b,"choices":[{"index":0,%b,"logprobs":null,"finish_reason":"%b"}],"usage":%b}' % (
            self._head(stream=False),
            choice[1:-1],
            finish_reason.encode(),
            self._usage(tokens),
        )

    def _frame(self, content: bytes, finish_reason: bytes, so_far: int) -> bytes:
        usage = b""
        if self.continuous:
            usage = b',"usage":%b' % self._usage(so_far)
        elif self.include_usage:
            usage = b',"usage":null'
        return b'data: {%b,"choices":[{"index":0,%b,"logprobs":null,"finish_reason":%b}]%b}\n\n' % (
            self._head(),
            content,
            finish_reason,
            usage,
        )

    def _head(self, *, stream: bool = True) -> bytes:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self.chat else "text_completion"
        fields = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return msgspec.json.encode(fields)[1:-1]

    def _usage(self, completion_tokens: int) -> bytes:
        return msgspec.json.encode(
            {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": self.prompt_tokens + completion_tokens,
            }
        )
