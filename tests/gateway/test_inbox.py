"""The inbox: nothing lost, nothing reordered, every source closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.delta import Delta, TokenLogprob, Usage
from tokenmill.core.errors import EngineStopped, GenerationFailed
from tokenmill.gateway.http import ClientGone
from tokenmill.gateway.inbox import Inbox, Source, merge


def piece(number: int, *, index: int = 0, last: bool = False) -> Delta:
    return Delta(
        index=index,
        text=f"{number},",
        token_ids=(number,),
        logprobs=(TokenLogprob(number, "t", b"t", -1.0),),
        finish_reason="stop" if last else None,
        usage=Usage(1, number + 1) if last else None,
    )


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_merging_in_groups_is_merging_at_once(groups: list[int]) -> None:
    total = sum(groups)
    deltas = [piece(number, last=number == total - 1) for number in range(total)]
    rest = iter(deltas)
    grouped = [merge(0, [next(rest) for _ in range(size)]) for size in groups]
    assert merge(0, grouped) == merge(0, deltas)
    assert merge(0, deltas).text == "".join(f"{number}," for number in range(total))
    assert merge(0, deltas).usage == Usage(1, total)


@given(
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=2, max_size=2), min_size=1, max_size=3),
    pauses=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_every_choice_arrives_whole_and_in_order(lengths: list[list[int]], pauses: list[bool]) -> None:
    """Sources of two choices each, a consumer that is sometimes slow: each choice's text is complete."""

    async def source(counts: list[int]) -> AsyncGenerator[Delta, None]:
        for number in range(max(counts)):
            for index, count in enumerate(counts):
                if number < count:
                    yield piece(number, index=index, last=number == count - 1)
            await asyncio.sleep(0)

    async def consume() -> dict[int, str]:
        texts: dict[int, str] = {}
        slow = iter(pauses)
        async with Inbox([source(counts) for counts in lengths], 2) as inbox:
            while deltas := await inbox.take():
                for delta in deltas:
                    texts[delta.index] = texts.get(delta.index, "") + delta.text
                for _ in range(5 * next(slow, False)):
                    await asyncio.sleep(0)
        return texts

    expected = ["".join(f"{number}," for number in range(count)) for counts in lengths for count in counts]
    assert asyncio.run(consume()) == dict(enumerate(expected))


class Watched:
    """Sources that tell whether they were started and closed."""

    def __init__(self) -> None:
        self.open = 0
        self.started = 0

    async def source(self, *deltas: Delta, error: Exception | None = None) -> AsyncGenerator[Delta, None]:
        self.started += 1
        self.open += 1
        try:
            for delta in deltas:
                yield delta
            if error is not None:
                raise error
            if not deltas:
                await asyncio.Event().wait()
        finally:
            self.open -= 1


async def test_leaving_closes_sources_that_still_run() -> None:
    watched = Watched()
    async with Inbox([watched.source(), watched.source()], 1):
        await asyncio.sleep(0)
        assert watched.open == 2
    assert watched.open == 0


async def test_what_came_before_a_failure_is_delivered_before_it() -> None:
    watched = Watched()
    failing = watched.source(piece(0), error=GenerationFailed("broken"))
    async with Inbox([failing], 1) as inbox:
        await asyncio.sleep(0)
        assert [delta.text for delta in await inbox.take()] == ["0,"]
        with pytest.raises(GenerationFailed):
            await inbox.take()
    assert watched.open == 0


async def test_a_source_that_is_cancelled_from_inside_does_not_leave_the_reader_waiting() -> None:
    async def source() -> AsyncGenerator[Delta, None]:
        yield piece(0)
        raise asyncio.CancelledError

    async with Inbox([source()], 1) as inbox:
        with pytest.raises(EngineStopped):
            await inbox.take_all()


@pytest.mark.parametrize("all_at_once", [False, True])
async def test_a_client_that_left_wins_over_what_waits(all_at_once: bool) -> None:
    watched = Watched()
    async with Inbox([watched.source(piece(0))], 1) as inbox:
        await asyncio.sleep(0)
        inbox.client_gone()
        with pytest.raises(ClientGone):
            await (inbox.take_all() if all_at_once else inbox.take())


async def test_a_client_that_left_early_starts_nothing() -> None:
    watched = Watched()
    sources: list[Source] = [watched.source()]
    inbox = Inbox(sources, 1)
    inbox.client_gone()
    async with inbox:
        await asyncio.sleep(0)
    assert watched.started == 0
