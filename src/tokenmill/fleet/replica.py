"""A replica: the only way a route reaches an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from tokenmill.core.delta import Delta
from tokenmill.core.request import GenerateRequest


class ReplicaStats(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's state at one moment.

    Attributes:
        ready: warm, not draining, and making progress whenever it has work.
        reason: why it is not ready, for people; empty when it is.
        stalled_s: seconds the present work has gone without a finished step; 0 while idle.
    """

    ready: bool
    reason: str = ""
    running: int = 0
    waiting: int = 0
    stalled_s: float = 0.0
    max_model_len: int = 0
    kv_blocks_total: int = 0
    kv_blocks_active: int = 0


class Replica(Protocol):
    """Something that turns requests into deltas."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Yields deltas until every choice has finished.

        Nothing is dispatched before the first `__anext__`. Closing the generator (or cancelling the
        task that runs it) aborts the request. A failure is raised as a `TokenmillError`, never yielded.
        """
        ...

    def stats(self) -> ReplicaStats: ...

    async def wait_ended(self) -> None:
        """Returns when the replica can never serve again, for whatever reason."""
        ...

    async def drain(self, timeout: float) -> None:
        """Takes no new work; returns when the running work is done, or cuts it after `timeout` seconds."""
        ...

    async def close(self) -> None:
        """Ends at once; running requests fail with `EngineStopped`."""
        ...
