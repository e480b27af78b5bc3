"""Exact counts of what a mock did: in all, and by request id, API key and user."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["finished", "refused", "failed", "disconnected", "reset"]

MAX_TALLIES = 200_000


class Tally(msgspec.Struct):
    """requests = finished + refused + failed + disconnected + reset + those still running or waiting.

    Attributes:
        finished: the whole answer was handed to the connection.
        refused: answered with an error status before any token.
        failed: broke with an error after generation began.
        disconnected: the client left first. reset: the mock cut the connection.
        generated_tokens: tokens the mock made. delivered_tokens: those handed to a connection that
            was open as far as the mock knew; the rest is waste.
    """

    requests: int = 0
    finished: int = 0
    refused: int = 0
    failed: int = 0
    disconnected: int = 0
    reset: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    delivered_tokens: int = 0


class Account:
    """The tallies one request counts into."""

    def __init__(self, tallies: tuple[Tally, ...]) -> None:
        self._tallies = tallies
        for tally in tallies:
            tally.requests += 1

    def prompt(self, tokens: int) -> None:
        for tally in self._tallies:
            tally.prompt_tokens += tokens

    def tokens(self, generated: int, delivered: int) -> None:
        for tally in self._tallies:
            tally.generated_tokens += generated
            tally.delivered_tokens += delivered

    def end(self, outcome: Outcome) -> None:
        for tally in self._tallies:
            setattr(tally, outcome, getattr(tally, outcome) + 1)


class Counts(msgspec.Struct):
    """All tallies of a server. A request id seen twice (a retry) counts twice in one tally.

    Each map keeps the newest MAX_TALLIES names; `dropped` says how many older ones it let go. `total` never
    loses any.
    """

    total: Tally = msgspec.field(default_factory=Tally)
    by_request: dict[str, Tally] = msgspec.field(default_factory=dict)
    by_key: dict[str, Tally] = msgspec.field(default_factory=dict)
    by_user: dict[str, Tally] = msgspec.field(default_factory=dict)
    dropped: int = 0
    running: int = 0
    waiting: int = 0

    def open(self, request_id: str, key: str, user: str) -> Account:
        """Counts a request in; key and user are empty where the request named none."""
        named = ((self.by_request, request_id), (self.by_key, key), (self.by_user, user))
        return Account((self.total, *(self._tally(tallies, name) for tallies, name in named)))

    def _tally(self, tallies: dict[str, Tally], name: str) -> Tally:
        tally = tallies.get(name)
        if tally is None:
            if len(tallies) >= MAX_TALLIES:
                del tallies[next(iter(tallies))]
                self.dropped += 1
            tally = tallies[name] = Tally()
        return tally
