"""Tokens a second while all streams decode. Plain Python: rivals' own interpreters import it too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """`tokens` of one stream that came together, `seconds` after the start."""

    seconds: float
    stream: int
    tokens: int


def decode_rate(arrivals: Sequence[Arrival]) -> float:
    """Tokens a second between the moment the last stream got its first token and the first got its last.

    Raises:
        ValueError: there is no such time.
    """
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for one in arrivals:
        first[one.stream] = min(first.get(one.stream, one.seconds), one.seconds)
        last[one.stream] = max(last.get(one.stream, one.seconds), one.seconds)
    start, end = max(first.values(), default=0.0), min(last.values(), default=0.0)
    if end <= start:
        raise ValueError("some stream had ended before the last one began")
    return sum(one.tokens for one in arrivals if start < one.seconds <= end) / (end - start)
