"""What counts as faster: paired ratios, their median, and the noise around it."""

import math

import pytest

from drumline.training.performance.timing import Rules, Timing, judge, measure_pairs, slowest


def test_the_gain_is_the_median_of_the_pairs_ratios() -> None:
    found = judge([10.0, 20.0, 10.0], [9.0, 16.0, 7.0])  # ratios 0.9, 0.8, 0.7
    assert (found.before_s, found.after_s) == (10.0, 9.0)
    assert found.gain == pytest.approx(0.2)
    spread = 1.4826 * 0.1  # median absolute deviation of the ratios, as a standard deviation
    assert found.noise == pytest.approx(2 * 1.2533141 * spread / math.sqrt(3), rel=1e-6)


def test_drift_of_the_machine_does_not_look_like_a_gain() -> None:
    seconds = iter(range(10, 30))  # every block slower than the one before

    def block(with_it: bool) -> float:
        return float(next(seconds))

    assert not measure_pairs(block, 9).is_worth(0.0)


def test_one_disturbed_pair_changes_nothing() -> None:
    calm = judge([10.0] * 5, [8.0] * 5)
    disturbed = judge([10.0] * 5, [8.0, 8.0, 80.0, 8.0, 8.0])
    assert disturbed.gain == calm.gain == pytest.approx(0.2)
    assert disturbed.noise == calm.noise == 0.0


@pytest.mark.parametrize(
    ("gain", "noise", "worth"), [(0.05, 0.03, True), (0.05, 0.06, False), (0.015, 0.0, False)]
)
def test_a_gain_must_exceed_the_minimum_and_its_noise(
    gain: float, noise: float, worth: bool
) -> None:
    assert Timing(1.0, 1.0 - gain, gain, noise).is_worth(0.02) is worth


def test_of_each_block_the_slowest_rank_counts() -> None:
    assert slowest([[1.0, 5.0, 3.0], [2.0, 4.0, 3.5]]) == [2.0, 5.0, 3.5]


def test_blocks_are_as_long_as_asked_and_fit_the_budget() -> None:
    rules = Rules(pairs=9, block_s=0.1, budget_s=20.0)
    assert rules.blocks(0.01) == (10, 9)  # 2 x 9 x 12 steps of 10 ms are 2.2 s
    assert rules.blocks(0.5) == (1, 6)  # 2 x 6 x 3 steps of 0.5 s are 18 s
    assert rules.blocks(60.0) == (1, 5)  # never fewer pairs than five
    assert rules.blocks(1e-6)[0] == 200
