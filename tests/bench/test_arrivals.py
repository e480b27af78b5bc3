import itertools
import statistics

import pytest

from tokenmill.bench.arrivals import Closed, Open, arrivals, constant, gamma, trace
from tokenmill.bench.distribution import seeded
from tokenmill.core.errors import ConfigError


def gaps(load: Open, count: int = 20_000) -> list[float]:
    times = [0.0, *itertools.islice(arrivals(load, seeded(11)), count)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def variation(values: list[float]) -> float:
    """Squared coefficient of variation."""
    return statistics.pvariance(values) / statistics.fmean(values) ** 2


def test_constant_arrivals_do_not_drift() -> None:
    times = list(itertools.islice(constant(10.0), 100_001))
    assert times[:3] == [0.0, 0.1, 0.2]
    assert times[-1] == 10_000.0


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_the_burstiness_asked_for(burstiness: float) -> None:
    drawn = gaps(Open(rate=50.0, burstiness=burstiness))
    assert statistics.fmean(drawn) == pytest.approx(1 / 50, rel=0.05)
    assert variation(drawn) == pytest.approx(1 / burstiness, rel=0.1)


def test_poisson_gaps_are_exponential() -> None:
    # P(gap > mean) = 1/e for an exponential, which a constant (0) or uniform (0.5) gap misses.
    drawn = gaps(Open(rate=50.0))
    assert sum(gap > 1 / 50 for gap in drawn) / len(drawn) == pytest.approx(0.3679, abs=0.01)


def test_infinite_burstiness_is_constant() -> None:
    assert gaps(Open(rate=4.0, burstiness=float("inf")), 4) == [0.0, 0.25, 0.25, 0.25]


def test_the_seed_decides_the_arrivals() -> None:
    first, again, other = (list(itertools.islice(gamma(5, 1, seeded(s)), 20)) for s in (1, 1, 2))
    assert first == again != other


def test_a_trace_is_replayed_in_order_from_its_first_arrival() -> None:
    assert list(trace([105.0, 100.0, 100.5])) == [0.0, 0.5, 5.0]
    assert list(arrivals(Open(times=(3.0, 1.0)), seeded(0))) == [0.0, 2.0]


@pytest.mark.parametrize("load", [{"rate": 0.0}, {"rate": float("inf")}, {"burstiness": 0.0}])
def test_an_open_loop_needs_a_positive_rate(load: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Open(**load)  # type: ignore[arg-type]  # times is not among them


def test_a_closed_loop_needs_a_user() -> None:
    with pytest.raises(ConfigError):
        Closed(users=0)
