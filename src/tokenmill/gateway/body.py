"""Reading a request body: bounded in size, time and depth, and strict JSON."""

from __future__ import annotations

import asyncio

import msgspec

from tokenmill.core.bounds import MAX_BODY_BYTES, MAX_JSON_DEPTH, MAX_JSON_ITEMS, deeper_than, show
from tokenmill.core.errors import InvalidRequest, PayloadTooLarge, RequestTimeout, UnsupportedMediaType
from tokenmill.gateway.http import Exchange

ON_LOOP_BYTES = 512 << 10

_decoder = msgspec.json.Decoder()


async def read_json_object(exchange: Exchange, timeout: float) -> dict[str, object]:
    """The body as a JSON object. Members that are null are left out: null means absent everywhere.

    Raises UnsupportedMediaType, PayloadTooLarge, RequestTimeout, InvalidRequest (`invalid_json`) or
    ClientGone.
    """
    body = await read_body(exchange, timeout)
    # Large ones are decoded on a thread, so that other connections get their turns.
    value = decode_json(body) if len(body) <= ON_LOOP_BYTES else await asyncio.to_thread(decode_json, body)
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return {key: item for key, item in value.items() if item is not None}


async def read_body(exchange: Exchange, timeout: float) -> bytes:
    """The whole body, at most `MAX_BODY_BYTES` within `timeout` seconds."""
    _check_headers(exchange)
    pieces: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(timeout):
            while more:
                piece, more = await exchange.receive_body()
                size += len(piece)
                if size > MAX_BODY_BYTES:
                    raise _too_large(f"more than {MAX_BODY_BYTES}")
                pieces.append(piece)
    except TimeoutError:
        raise RequestTimeout(f"the request body did not arrive within {timeout:g} seconds") from None
    return b"".join(pieces)


def _check_headers(exchange: Exchange) -> None:
    encoding = exchange.header(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise UnsupportedMediaType(f"content-encoding {_shown(encoding)} is not supported; send plain JSON")
    transfer = exchange.header(b"transfer-encoding")
    if transfer is not None and transfer.strip().lower() != b"chunked":  # the parser undoes nothing else
        raise UnsupportedMediaType(f"transfer-encoding {_shown(transfer)} is not supported, only chunked")
    content_type = exchange.header(b"content-type")
    if content_type:
        media = content_type.partition(b";")[0].strip().lower()
        if media not in (b"application/json", b"text/json") and not media.endswith(b"+json"):
            raise UnsupportedMediaType(f"content-type must be application/json, not {_shown(content_type)}")
    length = exchange.header(b"content-length")
    if length is not None and length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
        raise _too_large(length[:20].decode())


def _shown(header: bytes) -> str:
    return show(header.decode("latin-1"))


def _too_large(size: str) -> PayloadTooLarge:
    return PayloadTooLarge(f"the request body must have at most {MAX_BODY_BYTES} bytes, not {size}")


def decode_json(body: bytes) -> object:
    """Strict JSON: UTF-8, finite numbers, no lone surrogates, bounded depth. Of equal keys the last wins.

    Raises InvalidRequest with code `invalid_json`.
    """
    brackets = body.count(b"[") + body.count(b"{")
    if brackets + body.count(b",") > MAX_JSON_ITEMS:  # decoding holds the interpreter from start to end
        raise InvalidRequest(
            f"the body has more than {MAX_JSON_ITEMS} commas and opening brackets", code="invalid_json"
        )
    try:
        value: object = _decoder.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error).removeprefix("JSON is malformed: ").partition(" - at ")[0]
        raise InvalidRequest(f"the body is not valid JSON: {reason}", code="invalid_json") from None
    # Nothing can nest deeper than it has opening brackets; few bodies have as many as the bound.
    if brackets > MAX_JSON_DEPTH and deeper_than(value, MAX_JSON_DEPTH):
        raise _too_deep()
    return value


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"the body nests deeper than {MAX_JSON_DEPTH} levels", code="invalid_json")
