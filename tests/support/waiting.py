"""Waiting for a condition on the event loop, without guessing how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    """Lets the loop run until the condition holds; fails with TimeoutError when it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


async def until_steady(value: Callable[[], object], *, turns: int = 20, timeout_s: float = 20.0) -> None:
    """Lets the loop run until the value has stayed the same for so many of its turns."""
    async with asyncio.timeout(timeout_s):
        same, last = 0, value()
        while same < turns:
            await asyncio.sleep(0)
            same, last = (same + 1 if value() == last else 0), value()
