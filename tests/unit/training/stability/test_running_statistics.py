"""Running mean and variance against arithmetic, and what counts as a spike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.training.stability.statistics import RunningStatistics, SpikeFinder

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40)


@given(VALUES)
def test_within_the_window_they_are_the_plain_mean_and_variance(values: list[float]) -> None:
    known = RunningStatistics(window=40)
    for value in values:
        known.add(value)
    assert known.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert known.variance == pytest.approx(np.var(values), rel=1e-9, abs=1e-7)


def test_beyond_the_window_old_values_fade_by_its_fraction() -> None:
    known = RunningStatistics(window=4)
    values = [1.0, 5.0, 2.0, 8.0, 3.0, 9.0, 4.0]
    for value in values:
        known.add(value)
    # The first four weigh 1/4 each; every later one takes a quarter of all the weight there is.
    weights = [0.25] * 4
    for _ in values[4:]:
        weights = [0.75 * weight for weight in weights] + [0.25]
    mean = sum(w * v for w, v in zip(weights, values, strict=True))
    variance = sum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True))
    assert sum(weights) == pytest.approx(1.0)
    assert known.mean == pytest.approx(mean, rel=1e-12)
    assert known.variance == pytest.approx(variance, rel=1e-12)


def test_a_level_that_stands_still_has_a_deviation_of_a_hundredth_of_it() -> None:
    known = RunningStatistics(10)
    for _ in range(5):
        known.add(-3.0)
    assert known.deviation == pytest.approx(0.03)
    assert known.limit(2.0) == pytest.approx(-2.94)


def test_a_spike_is_found_where_it_is_and_nowhere_else() -> None:
    noise = np.random.default_rng(0).normal(2.0, 0.1, 400)
    noise[250] = 4.0  # 20 deviations
    finder = SpikeFinder(window=100, warmup=50, deviations=6.0)
    assert [place for place, value in enumerate(noise) if finder.is_spike(value)] == [250]


def test_a_second_spike_is_not_hidden_by_the_first() -> None:
    noise = np.random.default_rng(1).normal(2.0, 0.1, 400)
    noise[[250, 252, 254]] = 1e6
    finder = SpikeFinder(window=100, warmup=50, deviations=6.0)
    found = [place for place, value in enumerate(noise) if finder.is_spike(value)]
    assert found == [250, 252, 254]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_white_noise_has_no_spikes(seed: int) -> None:
    """At 6 deviations, estimated from 100 values to 7 % (one sigma), a normal value exceeds the
    limit about once in a hundred million; 25 series of 1000 have one with a chance below 0.1 %.
    """
    finder = SpikeFinder(window=100, warmup=100, deviations=6.0)
    noise = np.random.default_rng(seed).normal(5.0, 1.0, 1000)
    assert not any(finder.is_spike(value) for value in noise)


def test_a_falling_loss_is_no_spike() -> None:
    finder = SpikeFinder(window=100, warmup=20, deviations=6.0)
    assert not any(finder.is_spike(10 * math.exp(-step / 50)) for step in range(500))


def test_nothing_is_found_during_warmup_and_a_new_level_is_followed() -> None:
    finder = SpikeFinder(window=20, warmup=10, deviations=3.0)
    rng = np.random.default_rng(3)
    assert not any(finder.is_spike(value) for value in [0.0] * 4 + [100.0] + [0.0] * 4)
    finder = SpikeFinder(window=20, warmup=10, deviations=3.0)
    low, high = rng.normal(1, 0.05, 50), rng.normal(2, 0.05, 200)
    found = [finder.is_spike(value) for value in [*low, *high]]
    assert not any(found[:50])
    assert found[50]
    assert not any(found[100:])


def test_state_goes_on_exactly() -> None:
    one, other = RunningStatistics(5), RunningStatistics(5)
    for value in (1.0, 2.5, -3.0):
        one.add(value)
    other.load_state_dict(one.state_dict())
    one.add(7.0)
    other.add(7.0)
    assert (one.count, one.mean, one.variance) == (other.count, other.mean, other.variance)
