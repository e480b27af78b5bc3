import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tokenmill.bench.quantiles import _weighted_quantiles, bootstrap_intervals, quantile


def test_a_quantile_interpolates_between_order_statistics() -> None:
    # Place (4 - 1) * 0.9 = 2.7: seven tenths of the way from the third to the fourth.
    assert quantile(np.array([4.0, 1.0, 2.0, 3.0]), 0.9) == pytest.approx(3.7)


@given(
    hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(0, 100)),
    st.data(),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_repeated_values_give_the_quantile_of_the_repeated_array(
    values: np.ndarray, data: st.DataObject, share: float
) -> None:
    repeats = data.draw(
        hnp.arrays(np.int64, len(values), elements=st.integers(0, 4)).filter(lambda a: a.sum() > 0)
    )
    ordered = np.sort(values)
    expected = np.quantile(np.repeat(ordered, repeats), share)
    assert _weighted_quantiles(ordered, repeats, [share])[0] == pytest.approx(expected)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    # Exponential with mean 1: the median is ln 2. 95 % of 200 is 190; fewer than 175 has p < 1e-4.
    rng = np.random.default_rng(0)
    groups = np.arange(200)
    hits = 0
    for _ in range(200):
        ((low, high),) = bootstrap_intervals(rng.exponential(size=200), groups, [0.5], rng=rng, rounds=200)
        hits += low <= np.log(2) <= high
    assert 175 <= hits <= 200


def test_values_of_one_request_do_not_count_as_independent() -> None:
    # Ten requests with a hundred equal gaps each hold ten facts, not a thousand.
    rng = np.random.default_rng(1)
    values = np.repeat(rng.exponential(size=10), 100)
    (grouped,) = bootstrap_intervals(values, np.repeat(np.arange(10), 100), [0.5], rng=rng, rounds=300)
    (alone,) = bootstrap_intervals(values, np.arange(1000), [0.5], rng=rng, rounds=300)
    assert grouped[1] - grouped[0] > 2 * (alone[1] - alone[0])


def test_a_seed_gives_the_same_interval() -> None:
    values, groups = np.arange(50.0), np.arange(50)
    first, again = (
        bootstrap_intervals(values, groups, [0.5, 0.99], rng=np.random.default_rng(4)) for _ in range(2)
    )
    assert first == again


def test_a_single_value_is_its_own_interval() -> None:
    values = np.array([3.0])
    assert bootstrap_intervals(values, np.array([0]), [0.5], rng=np.random.default_rng(0)) == [(3.0, 3.0)]
