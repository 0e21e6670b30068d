"""The order of samples: a permutation of each epoch, the same whoever asks."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.training import SampleOrder, mix


@pytest.mark.parametrize("size", [*range(1, 201), 65_537, 104_729, 1_299_709])
def test_an_epoch_is_a_permutation(size: int) -> None:
    for epoch in (0, 1):
        samples = SampleOrder(size, seed=size).samples(epoch, 0, size)
        assert samples.dtype == np.int64
        assert np.array_equal(np.sort(samples), np.arange(size))


@given(
    size=st.integers(1, 10**15),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 10**6),
    data=st.data(),
)
def test_any_slice_agrees_with_position_by_position(
    size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, min(size, start + 40)))
    order = SampleOrder(size, seed)
    whole = order.samples(epoch, start, stop)
    single = [int(order.samples(epoch, at, at + 1)[0]) for at in range(start, stop)]
    assert whole.tolist() == single
    assert len(set(single)) == len(single)
    assert all(0 <= sample < size for sample in single)


@pytest.mark.parametrize("size", [5_000, 100_000, 4 * 10**9])
def test_the_order_is_the_same_where_few_are_asked_for_and_nothing_is_kept(size: int) -> None:
    many, starts = 10_000, (0, size // 2)
    for epoch, start in itertools.product((0, 3), starts):
        order = SampleOrder(size, seed=9)
        whole = order.samples(epoch, start, min(size, start + many))
        for at in range(0, len(whole), 517):
            alone = SampleOrder(size, seed=9).samples(epoch, start + at, start + at + 1)
            assert whole[at] == alone[0]


def test_an_order_keeps_little_of_many_epochs() -> None:
    order = SampleOrder(2**32, seed=1)
    tracemalloc.start()
    for epoch in range(20):
        order.samples(epoch, 0, 10_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2 * 6 * 8 * 2**16 + 2**20  # six tables of 65,536 for each of two epochs


def test_epochs_and_seeds_differ() -> None:
    size = 1000
    orders = [
        SampleOrder(size, seed).samples(epoch, 0, size)
        for seed, epoch in itertools.product(range(5), range(5))
    ]
    for one, other in itertools.combinations(orders, 2):
        equal = int((one == other).sum())  # two random orders agree in 1 place on average
        assert equal < 12  # Poisson(1): 12 or more has a chance of 1e-9


def test_seed_and_epoch_do_not_stand_in_for_each_other() -> None:
    size = 50
    one = SampleOrder(size, seed=1).samples(2, 0, size)
    assert not np.array_equal(one, SampleOrder(size, seed=2).samples(1, 0, size))


def test_a_slice_of_an_epoch_of_a_million_million_takes_no_memory() -> None:
    size = 10**12
    order = SampleOrder(size, seed=3)
    tracemalloc.start()
    samples = order.samples(4, size - 1000, size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert len(set(samples.tolist())) == 1000
    assert samples.min() >= 0
    assert samples.max() < size


def test_samples_move_as_far_as_in_a_random_permutation() -> None:
    """|i - P(i)| has mean (n^2 - 1) / 3n and, summed over i, variance near 2 n^3 / 45 (Spearman's
    footrule, Diaconis and Graham 1977).
    """
    size = 10_000
    for epoch in range(10):
        samples = SampleOrder(size, seed=9).samples(epoch, 0, size)
        footrule = int(np.abs(samples - np.arange(size)).sum())
        expected = (size**2 - 1) / 3
        deviation = math.sqrt(2 * size**3 / 45)
        assert abs(footrule - expected) < 5 * deviation


def test_neighbours_are_independent() -> None:
    """The serial correlation of a random permutation is near normal with deviation 1/sqrt(n)."""
    size = 50_000
    samples = SampleOrder(size, seed=2).samples(0, 0, size).astype(np.float64)
    correlation = np.corrcoef(samples[:-1], samples[1:])[0, 1]
    assert abs(correlation) < 5 / math.sqrt(size)


@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_every_sample_comes_to_every_position_equally_often(size: int) -> None:
    epochs = 1500
    order = SampleOrder(size, seed=0)
    counts = Counter(
        (place, sample)
        for epoch in range(epochs)
        for place, sample in enumerate(order.samples(epoch, 0, size).tolist())
    )
    expected = epochs / size
    deviation = math.sqrt(epochs * (1 / size) * (1 - 1 / size))
    for place, sample in itertools.product(range(size), repeat=2):
        assert abs(counts[place, sample] - expected) < 5 * deviation


def test_without_shuffling_position_is_sample() -> None:
    order = SampleOrder(10, seed=1, shuffle=False)
    assert order.samples(3, 4, 8).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 11), (11, 11), (5, 4)])
def test_positions_outside_the_epoch_are_refused(start: int, stop: int) -> None:
    with pytest.raises(IndexError, match="not within"):
        SampleOrder(10, seed=0).samples(0, start, stop)


def test_an_empty_slice_is_empty() -> None:
    assert SampleOrder(10, seed=0).samples(0, 10, 10).tolist() == []


@pytest.mark.parametrize("size", [0, -1])
def test_an_order_of_nothing_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        SampleOrder(size, seed=0)


def test_mixing_follows_splitmix64() -> None:
    """Steele, Lea and Flood's finaliser in exact integer arithmetic."""

    def splitmix(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) % 2**64
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
        return value ^ (value >> 31)

    state = 0x9E3779B97F4A7C15
    for number in (3, 2**63, 17):
        state = splitmix(state ^ number)
    assert mix(3, 2**63, 17) == state


@settings(max_examples=30)
@given(numbers=st.lists(st.integers(0, 2**63), min_size=2, max_size=4, unique=True))
def test_mixing_depends_on_the_order_of_its_numbers(numbers: list[int]) -> None:
    assert 0 <= mix(*numbers) < 2**64
    assert mix(*numbers) != mix(*reversed(numbers))
