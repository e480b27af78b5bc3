"""Percentiles with bootstrap confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEVEL = 0.95


def quantile(values: Floats, share: float) -> float:
    """Linear interpolation between order statistics, as numpy's default and the usual load tools."""
    return float(np.quantile(values, share))


def bootstrap_intervals(
    values: Floats,
    groups: Ints,
    shares: Sequence[float],
    *,
    rng: np.random.Generator,
    rounds: int | None = None,
) -> list[tuple[float, float]]:
    """A percentile-bootstrap interval (95 %) for each quantile.

    Whole groups are drawn with replacement: the values of one request depend on each other, so the
    requests are the sample (cluster bootstrap). `values` and `groups` are [n]; where every value is its own
    group this is the plain bootstrap.
    """
    if rounds is None:
        rounds = int(np.clip(40_000_000 // max(1, len(values)), 100, 1000))
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    names, member = np.unique(groups[order], return_inverse=True)
    drawn = np.empty((rounds, len(shares)))
    for turn in range(rounds):
        weights = np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))
        drawn[turn] = _weighted_quantiles(ordered, weights[member], shares)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _weighted_quantiles(ordered: Floats, repeats: Ints, shares: Sequence[float]) -> Floats:
    """The quantiles of `np.repeat(ordered, repeats)`, without building it."""
    ends = np.cumsum(repeats)
    places = (ends[-1] - 1) * np.asarray(shares)
    below = np.floor(places)
    low = ordered[np.searchsorted(ends, below, side="right")]
    high = ordered[np.searchsorted(ends, np.ceil(places), side="right")]
    result: Floats = low + (high - low) * (places - below)
    return result
