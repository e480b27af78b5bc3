"""Seeded distributions for lengths and delays, written as short strings.

`0.05` or `fixed:0.05`, `uniform:LOW:HIGH`, `exponential:MEAN`, `lognormal:MEDIAN:SIGMA[:LOW:HIGH]`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from tokenmill.core.errors import ConfigError

_ARGUMENTS = {"fixed": (1,), "uniform": (2,), "exponential": (1,), "lognormal": (2, 4)}
FORMS = "NUMBER, fixed:N, uniform:LOW:HIGH, exponential:MEAN or lognormal:MEDIAN:SIGMA[:LOW:HIGH]"


@dataclass(frozen=True)
class Distribution:
    """A distribution of non-negative numbers; the unit is the user's.

    `low` and `high` clip a lognormal; its `a` is the median and `b` the sigma of the logarithm.
    """

    kind: str
    a: float
    b: float = 0.0
    low: float = 0.0
    high: float = math.inf

    def sample(self, rng: random.Random) -> float:
        if self.kind == "fixed":
            return self.a
        if self.kind == "uniform":
            return rng.uniform(self.a, self.b)
        if self.kind == "exponential":
            return rng.expovariate(1.0 / self.a)
        return min(max(self.a * math.exp(self.b * rng.gauss(0.0, 1.0)), self.low), self.high)

    def sample_int(self, rng: random.Random, *, least: int = 0) -> int:
        """A whole number, both ends of a uniform equally likely."""
        if self.kind == "uniform":
            return max(least, rng.randint(round(self.a), round(self.b)))
        return max(least, round(self.sample(rng)))


def seeded(*parts: object) -> random.Random:
    """A generator that depends on `parts` alone, the same in every process."""
    return random.Random(repr(parts))  # noqa: S311 - load and delays, no secrets


def parse(value: str | float, *, name: str = "distribution") -> Distribution:
    """Reads one of `FORMS`. Raises ConfigError with the name of what was being read."""
    if isinstance(value, (int, float)):
        return _checked(Distribution("fixed", float(value)), name, str(value))
    kind, _, rest = value.partition(":") if ":" in value else ("fixed", "", value)
    try:
        numbers = [float(part) for part in rest.split(":")]
    except ValueError:
        raise ConfigError(f"{name} must be {FORMS}, not {value!r}") from None
    if len(numbers) not in _ARGUMENTS.get(kind, ()):
        raise ConfigError(f"{name} must be {FORMS}, not {value!r}")
    return _checked(Distribution(kind, *numbers), name, value)


def _checked(made: Distribution, name: str, value: str) -> Distribution:
    """Refuses what cannot be drawn from or would give negative numbers."""
    finite = all(math.isfinite(x) for x in (made.a, made.b, made.low)) and not math.isnan(made.high)
    ordered = made.b >= made.a if made.kind == "uniform" else made.b >= 0
    positive = made.a > 0 if made.kind in ("exponential", "lognormal") else made.a >= 0
    if not (finite and ordered and positive and 0 <= made.low <= made.high):
        raise ConfigError(f"{name} must have finite, ordered numbers that are not negative, not {value!r}")
    return made
