"""When requests arrive: endless or finite sequences of seconds from the start, independent of the answers.

Times are sums of the drawn gaps, never of sleeps, so that a late request does not delay the ones behind it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenmill.core.errors import ConfigError


@dataclass(frozen=True)
class Open:
    """Open loop: `rate` requests a second with gamma-distributed gaps, or exactly the `times` given.

    Attributes:
        burstiness: shape of the gamma distribution: 1 is Poisson, below 1 comes in bursts, infinity is
            constant.
        times: seconds from the start; they replace rate and burstiness.
    """

    rate: float = 1.0
    burstiness: float = 1.0
    times: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise ConfigError(f"rate must be a number above 0, not {self.rate}")
        if not self.burstiness > 0:
            raise ConfigError(f"burstiness must be above 0, not {self.burstiness}")


@dataclass(frozen=True)
class Closed:
    """Closed loop: `users` send their next request once the last one has ended and `think_s` has passed.

    `think_s` is a spec of `distribution`.
    """

    users: int = 1
    think_s: str | float = 0.0

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ConfigError(f"users must be at least 1, not {self.users}")


def arrivals(load: Open, rng: random.Random) -> Iterator[float]:
    """The arrival times of an open loop."""
    if load.times:
        return trace(load.times)
    if math.isinf(load.burstiness):
        return constant(load.rate)
    return gamma(load.rate, load.burstiness, rng)


def constant(rate: float) -> Iterator[float]:
    """0, 1/rate, 2/rate, ..."""
    return (number / rate for number in itertools.count())


def gamma(rate: float, shape: float, rng: random.Random) -> Iterator[float]:
    """Gaps with mean 1/rate and squared coefficient of variation 1/shape. The first request is one gap in."""
    at = 0.0
    while True:
        at += rng.gammavariate(shape, 1.0 / (rate * shape))
        yield at


def trace(times: Sequence[float]) -> Iterator[float]:
    """Recorded times, in order, the earliest moved to 0."""
    if not all(math.isfinite(at) for at in times):
        raise ConfigError("arrival times must be finite numbers")
    first = min(times, default=0.0)
    return iter(sorted(at - first for at in times))
