"""Sending one request and recording what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import msgspec

from tokenmill.bench.distribution import seeded
from tokenmill.bench.plan import LoadPlan
from tokenmill.bench.record import Record, StreamReader, read_whole
from tokenmill.bench.sse import SseDecoder
from tokenmill.bench.workload import Item

_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


def open_session() -> aiohttp.ClientSession:
    """A session that neither limits connections nor times anything out: the plan does both."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


class Sender:
    """Sends the items of a plan. `now` gives seconds from the start of the run."""

    def __init__(self, session: aiohttp.ClientSession, plan: LoadPlan, now: Callable[[], float]) -> None:
        self._session = session
        self._plan = plan
        self._now = now
        self._headers = {**_HEADERS, **plan.headers}

    async def send(self, item: Item, scheduled: float) -> Record:
        """Never raises for what a server does: every failure is in the record."""
        record = Record(index=item.index, scheduled=scheduled)
        body = msgspec.json.encode(self._plan.body(item))
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                record.sent = self._now()
                async with self._session.post(
                    self._plan.endpoint, data=body, headers=self._headers
                ) as response:
                    await self._read(response, record)
        except TimeoutError:
            record.fail("timeout", f"no end within {self._plan.timeout_s:g} s")
        except aiohttp.ClientConnectorError as error:
            record.fail("connect", str(error))
        except (aiohttp.ClientError, OSError) as error:
            record.fail("reset", f"{type(error).__name__}: {error}")
        if record.end is None:
            record.end = self._now()
        return record

    async def _read(self, response: aiohttp.ClientResponse, record: Record) -> None:
        record.status = response.status
        if response.status != 200:
            record.retry_after = response.headers.get("retry-after")
            record.fail("http", (await response.content.read(2000)).decode("utf-8", "replace"))
            await response.read()
        elif self._plan.stream:
            await self._read_stream(response, record)
        else:
            whole = await response.read()
            read_whole(record, whole, self._now(), keep_text=self._plan.keep_text)

    async def _read_stream(self, response: aiohttp.ClientResponse, record: Record) -> None:
        decoder, reader = SseDecoder(), StreamReader(record, keep_text=self._plan.keep_text)
        leave_after = self._leave_after(record.index)
        async for data in response.content.iter_any():
            now = self._now()
            for event in decoder.feed(data):
                reader.frame(event, now)
                if leave_after is not None and len(record.token_times) >= leave_after:
                    # The rest is unread, so leaving the response closes the connection.
                    record.cancelled, record.end = True, now
                    return
        reader.finish(self._now())

    def _leave_after(self, index: int) -> int | None:
        plan = self._plan
        if not plan.cancel_share:
            return None
        drawn = seeded(plan.workload.seed, "cancel", index).random()
        return plan.cancel_after if drawn < plan.cancel_share else None
