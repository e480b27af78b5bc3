"""The numbers behind the names: counters, gauges and histograms with bounded label sets."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenmill.observe.names import Name

Labels = tuple[str, ...]

MAX_VALUES_PER_LABEL = 200
MAX_LABEL_SETS = 2000
OTHER = "other"


class LabelBound:
    """Keeps what clients can cause from growing the page: beyond the bounds a value becomes `other`."""

    def __init__(self, labels: int) -> None:
        self._seen: tuple[set[str], ...] = tuple(set() for _ in range(labels))

    def admit(self, labels: Labels, known_sets: int) -> Labels:
        """The label set a new one is counted under."""
        if known_sets >= MAX_LABEL_SETS:
            return (OTHER,) * len(labels)
        return tuple(
            value if self._has_room(seen, value) else OTHER
            for seen, value in zip(self._seen, labels, strict=True)
        )

    @staticmethod
    def _has_room(seen: set[str], value: str) -> bool:
        if value not in seen and len(seen) < MAX_VALUES_PER_LABEL:
            seen.add(value)
        return value in seen


class Values:
    """A gauge or a counter: one number a label set. Without labels it is there from the start, at 0."""

    def __init__(self, name: Name) -> None:
        self.name = name
        self.values: dict[Labels, float] = {} if name.labels else {(): 0.0}
        self._bound = LabelBound(len(name.labels))

    def add(self, amount: float, *labels: str) -> None:
        if labels not in self.values:
            labels = self._bound.admit(labels, len(self.values))
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        if labels not in self.values:
            labels = self._bound.admit(labels, len(self.values))
        self.values[labels] = value

    def snapshot(self) -> Values:
        """A copy that no longer changes."""
        copy = Values(self.name)
        copy.values = dict(self.values)
        return copy


class Trace(NamedTuple):
    """Where an observation comes from: a trace id, and seconds since the Unix epoch."""

    trace_id: str
    wall: float


@dataclass
class Buckets:
    """One histogram: `counts[i]` observations were above edge i - 1 and at most edge i; the last, above all.

    `exemplars` has the latest traced observation of a bucket.
    """

    counts: list[int]
    total: float = 0.0
    exemplars: dict[int, tuple[float, Trace]] = field(default_factory=dict)


class Histogram:
    """Observations in buckets, one set of buckets a label set."""

    def __init__(self, name: Name) -> None:
        self.name = name
        self.edges = name.edges
        self.edge_texts = (*map(repr, name.edges), "+Inf")
        self.values: dict[Labels, Buckets] = {} if name.labels else {(): self._empty()}
        self._bound = LabelBound(len(name.labels))

    def observe(self, value: float, *labels: str, trace: Trace | None = None) -> None:
        """Counts one value; below 0 (clocks of two threads) counts as 0."""
        value = max(value, 0.0)
        buckets = self.values.get(labels)
        if buckets is None:
            labels = self._bound.admit(labels, len(self.values))
            buckets = self.values.setdefault(labels, self._empty())
        place = bisect_left(self.edges, value)
        buckets.counts[place] += 1
        buckets.total += value
        if trace is not None:
            buckets.exemplars[place] = (value, trace)

    def snapshot(self) -> Histogram:
        """A copy that no longer changes."""
        copy = Histogram(self.name)
        copy.values = {
            labels: Buckets(list(buckets.counts), buckets.total, dict(buckets.exemplars))
            for labels, buckets in self.values.items()
        }
        return copy

    def _empty(self) -> Buckets:
        return Buckets([0] * (len(self.edges) + 1))


Series = Values | Histogram


def make_series(name: Name) -> Series:
    return Histogram(name) if name.kind == "histogram" else Values(name)
