"""Nothing a caller sends harms anyone else: hostile bodies and bytes against the real server and model.

Another client asks the same thing beside every case and behind it. It always gets the same answer, to the last
digit; the server comes to rest; its memory does not grow; and no answer shows anything of its inside or of what
the other client said.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from support.attacks import FLAGS, ask, check_log, connect, exchange, until
from support.bad_forms import FORM_CASES, HISTORY_CASES, TOOL_CASES
from support.bad_inputs import CHAT_CASES, COMPLETION_CASES, EMBEDDING_CASES, RAW_CASES
from support.gateways import CHAT, COMPLETIONS, EMBEDDINGS, chat, completion, embedding
from support.hostile_bodies import BOMB, HOSTILE, Hostile, refused
from support.hostile_sockets import oddities, sizes, smuggling
from support.served import Served, serving
from support.witness import Witness

# Over the whole run, some 600 cases: the largest step's scratch and the largest bodies, in a heap that keeps what
# was freed. Measured 83 MiB, all of it with the first case of a kind; repeating a case adds nothing.
MOST_GROWN = 128 << 20

MISTAKES: dict[str, Hostile] = {
    **{
        f"{kind}: {name}": refused(path, body, code, 404 if code == "model_not_found" else 400)
        for kind, path, cases in (
            ("chat", CHAT, CHAT_CASES),
            ("tools", CHAT, TOOL_CASES),
            ("history", CHAT, HISTORY_CASES),
            ("form", CHAT, FORM_CASES),
            ("completion", COMPLETIONS, COMPLETION_CASES),
            ("embedding", EMBEDDINGS, EMBEDDING_CASES),
        )
        for name, (body, code, _) in cases.items()
    },
    **{f"raw: {name}": Hostile(CHAT, body, 400, code) for name, (body, code) in RAW_CASES.items()},
}
SOCKETS = {
    f"{kind}: {name}": (made, name)
    for kind, made in (("smuggling", smuggling), ("sizes", sizes), ("oddities", oddities))
    for name in made()
}


@pytest.fixture(scope="module")
def attacked(small_model_path: Path) -> Iterator[Served]:
    with serving(small_model_path, *FLAGS) as running:
        yield running
        check_log(running.log())


@pytest.fixture(scope="module")
def witness(attacked: Served) -> Iterator[Witness]:
    made = Witness(attacked)
    yield made
    made.close()
    assert made.grown_bytes < MOST_GROWN


@pytest.fixture(scope="module")
def client(attacked: Served) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=attacked.url, timeout=60) as made:
        yield made


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body(witness: Witness, client: httpx2.Client, name: str) -> None:
    with witness.beside():
        ask(client, HOSTILE[name])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake(witness: Witness, client: httpx2.Client, name: str) -> None:
    ask(client, MISTAKES[name])
    witness.unharmed()


@pytest.mark.parametrize("name", SOCKETS)
def test_hostile_bytes(attacked: Served, witness: Witness, name: str) -> None:
    made, key = SOCKETS[name]
    with witness.beside():
        exchange(attacked, *made()[key])


@dataclass(frozen=True)
class Leaving:
    """A request whose client leaves: once `seen` holds, or at once."""

    sent: bytes
    seen: Callable[[Served, socket.socket], bool] | None = None


def running(served: Served, _: socket.socket) -> bool:
    return served.metric("tokenmill_engine_requests_running") > 0


def waiting(served: Served, _: socket.socket) -> bool:
    return served.metric("tokenmill_engine_requests_waiting") > 0


def taken(served: Served, _: socket.socket) -> bool:
    return served.metric("tokenmill_engine_inflight") > 0 or waiting(served, _)


def speaking(_: Served, connection: socket.socket) -> bool:
    return b"data: " in connection.recv(1 << 16)


def finished(served: Served, _: socket.socket) -> bool:
    return served.metric("tokenmill_engine_inflight") == 0


def post(path: str, body: object, *, given: float = 1.0) -> bytes:
    """A request of whose body only a part is sent."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    return head + data[: round(len(data) * given)]


LONG = {"max_tokens": 400, "ignore_eos": True}
LEAVING = {
    "nothing sent": Leaving(b""),
    "half a head": Leaving(b"POST /v1/completions HTTP/1.1\r\nhost: loc"),
    "before the body": Leaving(post(COMPLETIONS, completion(), given=0)),
    "in the body": Leaving(post(COMPLETIONS, completion("a b " * 50_000), given=0.5)),
    "while it is tokenized": Leaving(post(COMPLETIONS, completion("a b " * 5_000))),
    "while messages are rendered": Leaving(
        post(CHAT, chat(messages=[{"role": "user", "content": "a"}] * 2000))
    ),
    "while a grammar is compiled": Leaving(post(CHAT, chat(guided_regex=BOMB + "z", **LONG)), taken),
    "in the queue": Leaving(post(COMPLETIONS, completion(n=16, **LONG)), waiting),
    "in prefill": Leaving(post(COMPLETIONS, completion([9] * 500, max_tokens=1)), running),
    "in decode": Leaving(post(COMPLETIONS, completion(**LONG)), running),
    "in a scored prompt": Leaving(post(COMPLETIONS, completion([8] * 500, prompt_logprobs=5)), running),
    "in a stream": Leaving(post(COMPLETIONS, completion(stream=True, **LONG)), speaking),
    "in a stream of many choices": Leaving(post(CHAT, chat(stream=True, n=16, **LONG)), speaking),
    "from a stream nobody reads": Leaving(post(CHAT, chat(stream=True, max_tokens=40)), finished),
    "among many prompts": Leaving(post(COMPLETIONS, completion(["a"] * 128, **LONG)), waiting),
    "among many inputs": Leaving(post(EMBEDDINGS, embedding(["a b c d"] * 500)), running),
    "behind others": Leaving(post(COMPLETIONS, completion(**LONG)) * 10, running),
}


@pytest.mark.parametrize("how", ["closes", "resets", "stops sending"])
@pytest.mark.parametrize("name", LEAVING)
def test_a_client_that_leaves(attacked: Served, witness: Witness, name: str, how: str) -> None:
    case = LEAVING[name]
    with connect(attacked) as connection:
        connection.sendall(case.sent)
        if (seen := case.seen) is not None:
            until(lambda: seen(attacked, connection))
        if how == "stops sending":
            connection.shutdown(socket.SHUT_WR)
            witness.unharmed()  # it counts as having left
        elif how == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    witness.unharmed()


def test_five_hundred_connections_that_say_nothing(attacked: Served, witness: Witness) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(500):
            connection = stack.enter_context(connect(attacked))
            connection.sendall(b"POST / HTTP/1.1\r\n"[: number % 18])
        witness.unharmed()
    witness.unharmed()
