"""Sending hostile cases to a real server, and holding what comes back against what must come back."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence

import httpx2

from support.hostile_bodies import Hostile
from support.hostile_sockets import Sent
from support.served import Served
from support.witness import SECRET, check_shown

# The server that the cases speak of.
FLAGS = (
    *("--served-model-name", "org/tiny", "--max-model-len", "512", "--num-kv-blocks", "64"),
    *("--max-num-seqs", "8", "--pooling", "mean"),
)
PATIENCE_S = 20.0


def ask(client: httpx2.Client, case: Hostile) -> None:
    """Sends a body; checks status and error, and that nothing is shown that should not be."""
    response = client.post(case.path, content=case.body, headers=case.headers)
    check_shown(response.text, str(response.headers))
    error = {} if case.status == 200 else response.json()["error"]
    assert (response.status_code, error.get("code", "")) == (case.status, case.code), response.text[:500]
    if case.status != 200:
        assert list(error) == ["message", "type", "param", "code"]
        assert len(error["message"]) < 500


def exchange(served: Served, sent: Sent, statuses: Sequence[int]) -> None:
    """Sends bytes; checks the statuses of the answers, and that each failure is an error object."""
    answer = talk(served, sent)
    found = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]
    assert [status for status in found if status != 100] == list(statuses)
    assert answer.count(b'"error":{"message":') == sum(status >= 400 for status in statuses)
    check_shown(answer.decode())


def connect(served: Served) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def talk(served: Served, sent: Sent) -> bytes:
    """All that comes back until the server closes; it need not take all that is sent."""
    answer = b""
    with connect(served) as connection:
        try:
            for piece in [sent] if isinstance(sent, bytes) else sent:
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            while data := connection.recv(1 << 16):
                answer += data
        except ConnectionResetError:
            pass
    return answer


def until(condition: Callable[[], bool]) -> None:
    """Asks again and again, without a pause: each time is a request of its own."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came to that"


def check_log(text: str) -> None:
    """Every line is the server's own, and says nothing of what clients said."""
    assert SECRET not in text
    for line in text.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [a-z_.]+: ", line), line
        assert line.isprintable()
