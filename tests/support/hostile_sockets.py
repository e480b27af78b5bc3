"""Bytes on a socket that are no plain request, each with the statuses they must get.

What is HTTP asks to close the connection, so an answer always ends; after what is not, the server closes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from support.gateways import completion

BODY = json.dumps(completion(max_tokens=1)).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
GET = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
KEPT = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
MIB = 1 << 20


def get(target: bytes, head: bytes = b"host: localhost\r\n", method: bytes = b"GET") -> bytes:
    return b"%b %b HTTP/1.1\r\n%bconnection: close\r\n\r\n" % (method, target, head)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked(head: bytes = POST + CHUNKED) -> bytes:
    return head + b"\r\n" + chunk(BODY) + b"0\r\n\r\n"


def one_by_one(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield data[at : at + 1]


def again(piece: bytes, times: int, head: bytes = b"") -> Iterator[bytes]:
    yield head
    for _ in range(times):
        yield piece


# What is sent: bytes, or pieces made as they are sent.
Sent = bytes | Iterator[bytes]


def smuggling() -> dict[str, tuple[Sent, list[int]]]:
    """Two readers of these could disagree on where the request ends."""
    return {
        "a length and chunks": (chunked(POST + LENGTH + CHUNKED), [400]),
        "chunks and a length": (chunked(POST + CHUNKED + LENGTH), [400]),
        "a request inside a body of two lengths": (
            POST + b"content-length: 4\r\n" + CHUNKED + b"\r\n" + chunk(BODY) + b"0\r\n\r\n" + KEPT,
            [400],
        ),
        "two equal lengths": (POST + LENGTH + LENGTH + b"\r\n" + BODY, [400]),
        "two lengths": (POST + LENGTH + b"content-length: 1\r\n\r\n" + BODY, [400]),
        "a list of lengths": (POST + b"content-length: 5, 5\r\n\r\nhello", [400]),
        "a length with a plus": (POST + b"content-length: +5\r\n\r\nhello", [400]),
        "a negative length": (POST + b"content-length: -1\r\n\r\n", [400]),
        "a hexadecimal length": (POST + b"content-length: 0x5\r\n\r\nhello", [400]),
        "two numbers as a length": (POST + b"content-length: 1 2\r\n\r\nhello", [400]),
        "an empty length": (POST + b"content-length: \r\n\r\n", [400]),
        "a length of 23 digits": (POST + b"content-length: 99999999999999999999999\r\n\r\n", [400]),
        "a length of 2^63": (POST + b"content-length: 9223372036854775808\r\n\r\n", [413]),
        "no coding": (POST + b"transfer-encoding: identity\r\n" + LENGTH + b"\r\n" + BODY, [400]),
        "a coding before chunks": (chunked(POST + b"transfer-encoding: gzip, chunked\r\n"), [415]),
        "a coding behind chunks": (chunked(POST + b"transfer-encoding: chunked, gzip\r\n"), [400]),
        "almost chunked": (chunked(POST + b"transfer-encoding: xchunked\r\n"), [400]),
        "chunked twice": (chunked(POST + CHUNKED + CHUNKED), [400]),
        "chunked behind a vertical tab": (chunked(POST + b"transfer-encoding: \x0bchunked\r\n"), [400]),
        "a space before the colon": (POST + b"transfer-encoding : chunked\r\n\r\n" + chunk(BODY), [400]),
        "an underscore": (POST + b"transfer_encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY, [200]),
        "a folded header": (POST + LENGTH + b"a: b\r\n c\r\n\r\n" + BODY, [400]),
        "a folded coding": (chunked(POST + b"transfer-encoding:\r\n chunked\r\n"), [400]),
        "bare line feeds": ((POST + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY, [400]),
        "a head that ends in line feeds": (POST + LENGTH + b"a: b\n\n" + BODY, [400]),
        "a bare carriage return": (POST + LENGTH + b"a: b\rc: d\r\n\r\n" + BODY, [400]),
        "a NUL in a header": (POST + LENGTH + b"a: b\x00c\r\n\r\n" + BODY, [400]),
        "a header without a colon": (POST + b"abc\r\n" + LENGTH + b"\r\n" + BODY, [400]),
        "a header without a name": (POST + b": x\r\n" + LENGTH + b"\r\n" + BODY, [400]),
        "a header that begins with a space": (b"GET / HTTP/1.1\r\n a: b\r\n\r\n", [400]),
        "a negative chunk": (POST + CHUNKED + b"\r\n-1\r\n", [400]),
        "a chunk of 18 digits": (POST + CHUNKED + b"\r\nffffffffffffffffff\r\n", [400]),
        "a chunk in 0x": (POST + CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n", [400]),
        "a chunk that is longer than it says": (POST + CHUNKED + b"\r\n5\r\nhelloXX0\r\n\r\n", [400]),
        "chunks in line feeds": (POST + CHUNKED + b"\r\n5\nhello\n0\n\n", [400]),
        "an extension that ends in a line feed": (POST + CHUNKED + b"\r\n5;\nhello\r\n0\r\n\r\n", [400]),
        "a space behind the size of a chunk": (POST + CHUNKED + b"\r\n5 \r\nhello\r\n0\r\n\r\n", [400]),
        "a length among the trailers": (
            POST + CHUNKED + b"\r\n" + chunk(BODY) + b"0\r\ncontent-length: 5\r\n\r\n",
            [400],
        ),
        "more behind the last request": (GET + b"\r\nGET /v1/models HTTP/1.1\r\n\r\n", [200]),
        "a body where none is read": (
            KEPT[:-2] + b"content-length: 5\r\n\r\nhello" + GET + b"\r\n",
            [200, 200],
        ),
        "garbage behind a request that is kept": (KEPT + b"\x00\xff garbage\r\n\r\n", [400]),
    }


def sizes() -> dict[str, tuple[Sent, list[int]]]:
    """Far more than any client needs. What is refused at once must not be read to its end."""
    return {
        "a request line of a megabyte": (get(b"/" + b"x" * MIB), [431]),
        "a header of a megabyte": (GET + b"a: " + b"x" * MIB + b"\r\n\r\n", [431]),
        "a name of a megabyte": (GET + b"x" * MIB + b": a\r\n\r\n", [431]),
        "100,000 headers": (GET + b"a: b\r\n" * 100_000 + b"\r\n", [431]),
        "100,000 empty lines": (b"\r\n" * 100_000, [431]),
        "an extension of a megabyte": (POST + CHUNKED + b"\r\n5;" + b"a" * MIB + b"\r\nhello\r\n", [431]),
        "trailers of a megabyte": (
            POST + CHUNKED + b"\r\n" + chunk(BODY) + b"0\r\n" + b"a: b\r\n" * 150_000 + b"\r\n",
            [431],
        ),
        "100 megabytes that are told": (
            again(b"x" * MIB, 100, POST + b"content-length: %d\r\n\r\n" % (100 * MIB)),
            [413],
        ),
        "100 megabytes that are waited for": (
            POST + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % (100 * MIB),
            [413],
        ),
        "100 megabytes in chunks": (again(chunk(b" " * MIB), 100, POST + CHUNKED + b"\r\n"), [413]),
        "a chunk of 100 megabytes": (
            again(b" " * MIB, 100, POST + CHUNKED + b"\r\n%x\r\n" % (100 * MIB)),
            [413],
        ),
        "8 megabytes of brackets": (
            again(b"[" * MIB, 8, POST + b"content-length: %d\r\n\r\n" % (8 * MIB)),
            [400],
        ),
        "a body in chunks of one byte": (
            POST + CHUNKED + b"\r\n" + b"".join(map(chunk, one_by_one(BODY))) + b"0\r\n\r\n",
            [200],
        ),
        "a request byte by byte": (one_by_one(POST + LENGTH + b"\r\n" + BODY), [200]),
        "6,000 ranges": (GET + b"range: bytes=0-" + b",1-" * 6_000 + b"\r\n\r\n", [200]),
        "16 requests at once": (KEPT * 15 + GET + b"\r\n", [200] * 16),
    }


def oddities() -> dict[str, tuple[Sent, list[int]]]:
    """Other protocols, methods, targets and hosts."""
    websocket = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    return {
        "HTTP/0.9": (b"GET /health/live\r\n\r\n", [200]),
        "HTTP/1.2": (b"GET /health HTTP/1.2\r\n\r\n", [400]),
        "HTTP/1.1 and a letter": (b"GET /health HTTP/1.1x\r\n\r\n", [400]),
        "the beginning of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", [400]),
        "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400]),
        "a thousand NULs": (b"\0" * 1000, [400]),
        "a WebSocket": (KEPT[:-2] + websocket + b"\r\n" + KEPT, [200]),
        "another protocol": (KEPT[:-2] + b"connection: upgrade\r\nupgrade: tls/1.0\r\n\r\n", [200]),
        "a tunnel": (b"CONNECT example.org:443 HTTP/1.1\r\nhost: localhost\r\n\r\n", [400]),
        "a tunnel to a path": (get(b"/health", method=b"CONNECT") + KEPT, [405]),
        "a trace": (get(b"/health", method=b"TRACE"), [405]),
        "the options of everything": (get(b"*", method=b"OPTIONS"), [404]),
        "a deletion": (get(b"/v1/models", method=b"DELETE"), [405]),
        "a method nobody knows": (get(b"/health", method=b"BREW"), [400]),
        "a method in small letters": (get(b"/health", method=b"get"), [400]),
        "a head alone": (get(b"/v1/models", method=b"HEAD"), [200]),
        "a whole URL": (get(b"http://localhost/health/live"), [200]),
        "a whole URL without a path": (get(b"http://example.org"), [400]),
        "a URL of a port that is none": (get(b"http://u:p@localhost:99999/health"), [400]),
        "two hosts": (get(b"/v1/models", b"host: localhost\r\nhost: example.org\r\n"), [403]),
        "a host elsewhere": (get(b"/v1/models", b"host: example.org\r\n"), [403]),
        "a host with a path": (get(b"/v1/models", b"host: localhost/health\r\n"), [403]),
        "a host with a user": (get(b"/v1/models", b"host: localhost@example.org\r\n"), [403]),
        "a host with a question": (get(b"/v1/models", b"host: localhost?/health\r\n"), [403]),
        "a path upwards": (get(b"/v1/models/../../secret"), [404]),
        "an escaped path upwards": (get(b"/v1/models/%2e%2e%2f%2e%2e%2fhostname"), [404]),
        "an escaped end of line": (get(b"/v1/models/%00%0d%0ax-evil:%201"), [404]),
        "escapes that are none": (get(b"/v1/models/%zz%ff%c0%af"), [404]),
        "two slashes": (get(b"//v1/models"), [404]),
        "a space in the path": (get(b"/health x"), [400]),
        "a line feed in the path": (get(b"/health\nx"), [400]),
        "tabs between": (b"GET\t/health\tHTTP/1.1\r\n\r\n", [400]),
        "empty lines before": (b"\r\n" * 20 + GET + b"\r\n", [200]),
        "an expectation nobody knows": (POST + b"expect: magic\r\n" + LENGTH + b"\r\n" + BODY, [200]),
        "a request id of two lines": (GET + b"x-request-id: a\r\n b: c\r\n\r\n", [400]),
        "a request id of no letters": (GET + b"x-request-id: \xff\xfe\r\n\r\n", [200]),
        "a request id of a tab": (GET + b"x-request-id: a\tb\r\n\r\n", [200]),
    }
