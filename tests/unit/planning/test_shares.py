"""Shares and micro-batches: sums, proportions, whole groups."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.planning import cut_micro_batches, cut_shares

WEIGHTS = st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(any)


@given(total=st.integers(0, 10**6), ranks=st.integers(1, 64), granularity=st.integers(1, 40))
def test_equal_shares_differ_by_at_most_one_group(total: int, ranks: int, granularity: int) -> None:
    shares = cut_shares(total, [1] * ranks, granularity)
    assert sum(shares) == total
    assert len(shares) == ranks
    groups = [share // granularity for share in shares]
    assert max(groups) - min(groups) <= 1
    assert groups == sorted(groups, reverse=True)  # ties go to the lower rank
    rests = [share % granularity for share in shares]
    assert sum(rest > 0 for rest in rests) <= 1


@given(total=st.integers(0, 10**6), weights=WEIGHTS, granularity=st.integers(1, 40))
def test_shares_are_whole_groups_in_proportion(
    total: int, weights: list[int], granularity: int
) -> None:
    shares = cut_shares(total, weights, granularity)
    assert sum(shares) == total
    groups, rest = divmod(total, granularity)
    holders = [rank for rank, share in enumerate(shares) if share]
    for rank, (share, weight) in enumerate(zip(shares, weights, strict=True)):
        own_rest = rest if holders and rank == holders[-1] else 0
        assert (share - own_rest) % granularity == 0
        dealt = (share - own_rest) // granularity
        assert abs(dealt - Fraction(groups * weight, sum(weights))) < 1
        assert weight or not share


@pytest.mark.parametrize(
    ("total", "weights", "granularity", "shares"),
    [
        (10, [1, 1, 1, 1], 1, (3, 3, 2, 2)),
        (12, [9, 3], 1, (9, 3)),
        (12, [3, 1], 4, (8, 4)),
        (10, [1, 1], 4, (4, 6)),
        (3, [1, 1], 4, (3, 0)),
        (3, [0, 1], 4, (0, 3)),
        (7, [0.5, 1.5], 1, (2, 5)),
        (0, [1, 1], 1, (0, 0)),
        (10**12, [1, 1, 1], 1, (333333333334, 333333333333, 333333333333)),
    ],
)
def test_shares_by_hand(
    total: int, weights: list[int], granularity: int, shares: tuple[int, ...]
) -> None:
    assert cut_shares(total, weights, granularity) == shares


@given(parts=st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any))
def test_shares_that_were_cut_once_are_cut_the_same_again(parts: list[int]) -> None:
    assert cut_shares(sum(parts), parts) == tuple(parts)


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1]])
def test_weights_without_sense_are_refused(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        cut_shares(4, weights)


@given(count=st.integers(0, 5000), micro_batch=st.integers(1, 600), granularity=st.integers(1, 50))
def test_micro_batches_are_as_large_as_allowed_and_whole_groups(
    count: int, micro_batch: int, granularity: int
) -> None:
    sizes = cut_micro_batches(count, micro_batch, granularity)
    assert sum(sizes) == count
    assert all(sizes)
    largest = max(granularity, micro_batch // granularity * granularity)
    assert all(size == largest for size in sizes[:-1])
    assert not sizes or sizes[-1] <= largest


def test_micro_batches_by_hand() -> None:
    assert cut_micro_batches(10, 4) == [4, 4, 2]
    assert cut_micro_batches(10, 7, granularity=3) == [6, 4]
    assert cut_micro_batches(10, 1, granularity=3) == [3, 3, 3, 1]
    assert cut_micro_batches(0, 4) == []
