"""The two loops that decide when requests are sent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from tokenmill.bench.arrivals import Closed, Open, arrivals
from tokenmill.bench.distribution import parse
from tokenmill.bench.record import Record
from tokenmill.bench.workload import Item

Send = Callable[[Item, float], Coroutine[Any, Any, Record]]
Now = Callable[[], float]


async def closed_loop(
    load: Closed, items: Iterator[Item], send: Send, now: Now, *, max_seconds: float, rng: random.Random
) -> list[Record]:
    """Each user sends when its last answer has ended; a request is due the moment its user is free."""
    records: list[Record] = []
    think = parse(load.think_s, name="think_s")

    async def user() -> None:
        while (due := now()) < max_seconds:
            item = next(items, None)
            if item is None:
                return
            records.append(await send(item, due))
            pause = think.sample(rng)
            if pause:
                await asyncio.sleep(min(pause, max(0.0, max_seconds - now())))

    async with asyncio.TaskGroup() as group:
        for _ in range(load.users):
            group.create_task(user())
    return records


async def open_loop(
    load: Open,
    items: Iterator[Item],
    send: Send,
    now: Now,
    *,
    max_seconds: float,
    max_in_flight: int,
    rng: random.Random,
) -> tuple[list[Record], int]:
    """Sends at the arrival times whatever the answers do.

    Returns the records, and how many arrivals fell within the time but could not be sent in it, as
    `max_in_flight` others were still running.
    """
    running: set[asyncio.Task[Record]] = set()
    tasks: list[asyncio.Task[Record]] = []
    unsent = 0
    async with asyncio.TaskGroup() as group:
        for at, item in zip(arrivals(load, rng), items, strict=False):
            if at > max_seconds:
                break
            await asyncio.sleep(max(0.0, at - now()))
            while len(running) >= max_in_flight and now() < max_seconds:
                await asyncio.wait(running, timeout=max_seconds - now(), return_when=asyncio.FIRST_COMPLETED)
            if len(running) >= max_in_flight:
                unsent += 1
                continue
            task = group.create_task(send(item, at))
            tasks.append(task)
            running.add(task)
            task.add_done_callback(running.discard)
    return [task.result() for task in tasks], unsent
