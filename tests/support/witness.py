"""A well-behaved client beside a hostile one: it must get the same answer as ever, and keep its words to itself."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2

from support.served import Served

SECRET = "zanzibar 7731"
# Two sentences longer than a KV block, so that its beginning comes out of the prefix cache.
PROMPT = (
    f"The secret word of this week is {SECRET}, and nobody else may ever read it. When winter came they built "
    "small houses near the river, and the first thing that they did was to"
)
GAUGES: tuple[tuple[str, dict[str, str]], ...] = (
    ("tokenmill_engine_requests_running", {}),
    ("tokenmill_engine_requests_waiting", {}),
    ("tokenmill_engine_inflight", {}),
    ("tokenmill_engine_kv_blocks", {"state": "active"}),
)
REST_S = 60.0
# Some 3,000 tokens, on a machine that has other things to do.
WARM_S = 240.0
# The longest another client may have to wait for two tokens, whatever runs beside it: this is no benchmark.
WAIT_S = 60.0
# What no answer may hold: paths, addresses, names of classes and modules, stacks.
LEAK = re.compile(
    r"Traceback|File \"|\.py\b|0x[0-9a-f]{6}|object at|<class|"
    r"(?:/(?:home|root|usr|tmp|work|var|opt|etc)/)|site-packages|"
    r"\b(?:jinja2|msgspec|llguidance|starlette|uvicorn|torch|tokenizers)\b|\btokenmill\.|"
    r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)*(?:Error|Exception|Interrupt)\b"
)


class Witness:
    """Asks one server the same thing over and over."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._client = httpx2.Client(base_url=served.url, timeout=WAIT_S)
        self._warm()
        self._ask()  # fills the prefix cache, so that every later answer comes about in the same way
        self._answer = self._ask()
        self._bytes = served.rss_bytes()

    def close(self) -> None:
        self._client.close()

    @property
    def grown_bytes(self) -> int:
        """By how much the server's memory has grown since the first answer."""
        return self._served.rss_bytes() - self._bytes

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Asks while the body runs, and again behind it; then the server must be at rest."""
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(self._ask()))
        asking.start()
        try:
            yield
        finally:
            asking.join(WAIT_S)
        assert found == [self._answer], "the answer beside it"
        self.unharmed()

    def unharmed(self) -> None:
        """Asks, and waits until the server is at rest. Raises AssertionError."""
        assert self._ask() == self._answer
        self.at_rest()

    def at_rest(self) -> None:
        """Waits until nothing runs, waits or holds a block. Raises AssertionError when that takes too long."""
        end = time.monotonic() + REST_S
        while any(found := self.gauges()):
            assert time.monotonic() < end, f"still busy: {found}"

    def gauges(self) -> list[float]:
        page = self._served.metrics()
        return [page.sum(name, **labels) for name, labels in GAUGES]

    def _warm(self) -> None:
        """Has the server take, once, what it takes for good: every KV block, the largest step, a grammar."""
        ids = [[word + 100] * 500 for word in range(4)]
        for body in (
            {"prompt": ids},
            {"prompt": ids[0], "prompt_logprobs": 5},
            {"prompt": "x", "guided_regex": "[a-z]+"},
        ):
            answer = self._client.post(
                "/v1/completions", json={"model": self._served.model, "max_tokens": 2, **body}, timeout=WARM_S
            )
            assert answer.status_code == 200, answer.text

    def _ask(self) -> Any:
        """All of an answer that may not change: text and log-probabilities, to the last digit."""
        response = self._client.post(
            "/v1/completions",
            json={
                "model": self._served.model,
                "prompt": PROMPT,
                "max_tokens": 2,
                "temperature": 0,
                "logprobs": 2,
            },
        )
        return response.status_code, response.json().get("choices")


def check_shown(text: str, headers: str = "") -> None:
    """An answer to somebody else tells nothing of the server's inside or of the witness."""
    for place in (text, headers):
        assert SECRET not in place
        assert (leak := LEAK.search(place)) is None, leak
