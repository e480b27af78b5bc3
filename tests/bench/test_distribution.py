import math
import statistics

import pytest

from tokenmill.bench.distribution import Distribution, parse, seeded
from tokenmill.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (0.05, Distribution("fixed", 0.05)),
        ("7", Distribution("fixed", 7.0)),
        ("fixed:7", Distribution("fixed", 7.0)),
        ("uniform:10:1500", Distribution("uniform", 10.0, 1500.0)),
        ("exponential:0.2", Distribution("exponential", 0.2)),
        ("lognormal:100:0.5", Distribution("lognormal", 100.0, 0.5)),
        ("lognormal:100:0.5:10:400", Distribution("lognormal", 100.0, 0.5, 10.0, 400.0)),
    ],
)
def test_each_form_is_read(text: str | float, made: Distribution) -> None:
    assert parse(text) == made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "normal:1:2",
        "uniform:1",
        "uniform:5:1",
        "fixed:-1",
        -1,
        "nan",
        "inf",
        "exponential:0",
        "fixed:1:2",
    ],
)
def test_what_cannot_be_drawn_from_is_refused_by_name(text: str | float) -> None:
    with pytest.raises(ConfigError, match="gap_s"):
        parse(text, name="gap_s")


def test_a_seed_gives_the_same_numbers_and_another_gives_others() -> None:
    spec = parse("lognormal:10:1")
    first, again, other = ([spec.sample(seeded(seed, "x")) for _ in range(3)] for seed in (1, 1, 2))
    assert first == again != other


def test_a_uniform_whole_number_reaches_both_ends() -> None:
    rng = seeded(0)
    assert {parse("uniform:1:3").sample_int(rng) for _ in range(200)} == {1, 2, 3}


def test_moments_are_those_of_the_distribution() -> None:
    rng = seeded(7)
    exponential = [parse("exponential:2").sample(rng) for _ in range(20_000)]
    lognormal = [parse("lognormal:100:0.5").sample(rng) for _ in range(20_000)]
    assert statistics.fmean(exponential) == pytest.approx(2.0, rel=0.03)
    assert statistics.median(lognormal) == pytest.approx(100.0, rel=0.03)
    # The mean of a lognormal is median * exp(sigma^2 / 2).
    assert statistics.fmean(lognormal) == pytest.approx(100.0 * math.exp(0.125), rel=0.03)


def test_a_lognormal_stays_within_its_ends() -> None:
    rng = seeded(3)
    drawn = [parse("lognormal:100:2:50:200").sample(rng) for _ in range(500)]
    assert min(drawn) == 50.0
    assert max(drawn) == 200.0
