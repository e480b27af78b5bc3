"""Server-sent events as the OpenAI API uses them: one `data:` line an event."""

from __future__ import annotations

import msgspec

from tokenmill.core.errors import TokenmillError
from tokenmill.gateway.http import error_body

CONTENT_TYPE = b"text/event-stream; charset=utf-8"
HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_encoder = msgspec.json.Encoder()


def event(value: object) -> bytes:
    """One event. JSON has no raw newlines, so it is one line."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def error_event(error: TokenmillError) -> bytes:
    """A failure after the first byte: official clients raise on it, whatever came before."""
    return b"data: " + error_body(error) + b"\n\n"
