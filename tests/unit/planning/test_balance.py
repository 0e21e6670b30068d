"""Shares from measured speeds, and who counts as slow."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from drumline.planning import cut_shares
from drumline.planning.balance import (
    LEAST_GAIN,
    OwnWork,
    in_proportion,
    own_work,
    rebalance,
    slow_ranks,
)

SPEEDS = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=12)
GRANULARITY = st.integers(1, 40)


@given(total=st.integers(1, 10**6), speeds=SPEEDS, granularity=GRANULARITY)
def test_shares_are_whole_groups_follow_speed_and_leave_nobody_out(
    total: int, speeds: list[float], granularity: int
) -> None:
    assume(total // granularity >= len(speeds))
    shares = in_proportion(total, speeds, granularity)
    assert sum(shares) == total
    groups = [share // granularity for share in shares]
    assert min(groups) >= 1
    assert sum(share % granularity > 0 for share in shares) <= 1
    for one, ones_groups in zip(speeds, groups, strict=True):
        for other, others_groups in zip(speeds, groups, strict=True):
            assert one < other or ones_groups >= others_groups - 1  # groups cannot be cut


@given(total=st.integers(1, 10**5), speeds=SPEEDS, granularity=GRANULARITY)
def test_a_source_that_is_given_the_groups_cuts_the_same_shares(
    total: int, speeds: list[float], granularity: int
) -> None:
    assume(total // granularity >= len(speeds))
    shares = in_proportion(total, speeds, granularity)
    groups = [share // granularity for share in shares]
    assert cut_shares(total, groups, granularity) == shares


@given(
    groups=st.lists(st.integers(1, 500), min_size=2, max_size=8),
    speeds=st.lists(st.floats(0.1, 100), min_size=8, max_size=8),
    granularity=GRANULARITY,
)
def test_shares_move_only_if_the_longest_rank_ends_sooner_by_more_than_noise(
    groups: list[int], speeds: list[float], granularity: int
) -> None:
    old = tuple(group * granularity for group in groups)
    speeds = speeds[: len(old)]
    new, gain = rebalance(old, speeds, granularity)
    before = max(share / speed for share, speed in zip(old, speeds, strict=True))
    after = max(share / speed for share, speed in zip(new, speeds, strict=True))
    assert after == pytest.approx((1 - gain) * before)
    assert gain == 0.0 if new == old else gain > LEAST_GAIN
    assert rebalance(new, speeds, granularity) == (new, 0.0)  # noise apart, it is done at once


@pytest.mark.parametrize(
    ("old", "speeds", "granularity", "new"),
    [
        ((48, 48), (2.0, 1.0), 1, (64, 32)),
        ((48, 48), (200.0, 100.0), 1, (64, 32)),
        ((16, 16, 16), (3.0, 2.0, 1.0), 8, (24, 16, 8)),
        ((50, 50), (1.0, 0.96), 1, (50, 50)),  # 51 and 49 would be 2% sooner
        ((64, 64), (1.0, 0.001), 1, (127, 1)),
        ((8, 8), (1.0, 0.001), 8, (8, 8)),  # nobody is left without
        ((8, 12), (4.0, 1.0), 8, (8, 12)),  # 20 samples are two groups and a rest
    ],
)
def test_new_shares_by_hand(
    old: tuple[int, ...], speeds: tuple[float, ...], granularity: int, new: tuple[int, ...]
) -> None:
    assert rebalance(old, speeds, granularity)[0] == new


def test_the_gain_is_the_part_of_the_step_that_is_saved() -> None:
    """48 samples at 1 a second took 48 s; 64 at 2 a second and 32 at 1 a second take 32 s."""
    assert rebalance((48, 48), (2.0, 1.0))[1] == pytest.approx(1 / 3)


@given(
    fixed=st.floats(0, 30),
    slower=st.floats(1.3, 8),
)
def test_with_costs_that_do_not_depend_on_the_share_it_comes_near_without_going_beyond(
    fixed: float, slower: float
) -> None:
    """Rank 1 takes `slower` times as long for a sample, and every step costs both `fixed`."""
    total = 3000
    shares: tuple[int, ...] = (total // 2, total // 2)
    best = total * slower / (1 + slower)
    for _ in range(60):
        times = [fixed + shares[0] * 0.01, fixed + shares[1] * 0.01 * slower]
        speeds = [share / time for share, time in zip(shares, times, strict=True)]
        new, gain = rebalance(shares, speeds)
        assert shares[0] <= new[0] <= best + 1
        shares = new
        if not gain:
            break
    times = [fixed + shares[0] * 0.01, fixed + shares[1] * 0.01 * slower]
    settled = in_proportion(total, [s / t for s, t in zip(shares, times, strict=True)])
    assert gain == 0.0
    assert max(abs(a - b) for a, b in zip(settled, shares, strict=True)) <= 0.06 * total


@pytest.mark.parametrize(("noise", "moves"), [(0.0, True), (0.3, True), (0.34, False)])
def test_shares_stay_where_the_noise_is_as_large_as_the_gain(noise: float, moves: bool) -> None:
    assert (rebalance((48, 48), (2.0, 1.0), noise=noise)[0] == (64, 32)) is moves


def test_more_ranks_than_groups_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="3 ranks"):
        in_proportion(10, [1.0, 1.0, 1.0], granularity=4)


@pytest.mark.parametrize(
    ("devices", "speeds", "slow"),
    [
        (["A", "A"], [1.0, 0.5], {1: 0.5}),
        (["A", "A"], [1.0, 0.81], {}),
        (["A", "B"], [1.0, 0.1], {}),  # another kind of device may be slower
        (["A", "A", "B", "B"], [4.0, 4.0, 1.0, 0.7], {3: 0.7}),
        (["A"] * 4, [1.0, 1.1, 0.9, 0.3], {3: 0.3}),
        (["A"] * 4, [1.0, 1.0, 1.0, 9.0], {}),  # one that is fast makes nobody slow
    ],
)
def test_slow_is_below_the_median_of_the_other_like_devices(
    devices: list[str], speeds: list[float], slow: dict[int, float]
) -> None:
    assert slow_ranks(devices, speeds) == pytest.approx(slow)


def test_speed_counts_the_wait_for_data() -> None:
    work = OwnWork(reading_s=0.03, computing_s=0.01)
    assert work.samples_per_s == pytest.approx(25.0)
    assert work.reading == pytest.approx(0.75)


def test_of_five_steps_the_median_computes_and_the_outermost_do_not_spread() -> None:
    """Seconds a sample: 9, 1.0, 1.2, 0.9, 0.1; the middle three span 0.3 around 1.0."""
    work = own_work([10, 10, 20, 10, 10], [0, 0, 6, 0, 0], [90, 10, 24, 9, 1], 0.5)
    assert work.computing_s == pytest.approx(1.0)
    assert work.spread == pytest.approx(0.3)
    assert work.reading_s == pytest.approx(6 / 60)
    assert work.on_processor == 0.5


def test_one_step_has_no_spread() -> None:
    assert own_work([4], [2.0], [8.0]) == OwnWork(0.5, 2.0)
