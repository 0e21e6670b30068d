"""A step's samples over any number of ranks: each exactly once, in one order."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drumline.errors import BadInput
from drumline.training import Cursor, MapSource, SampleOrder, ShareOfStep, StepBatch
from drumline.training.source import ahead


class Numbers:
    """A data set whose samples are their own numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return torch.tensor(index)


class ManyNumbers(Numbers):
    """The same, giving a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> Tensor:
        return torch.tensor(indices)


def source_of(size: int, epoch_end: str = "short", seed: int = 5, **options: Any) -> MapSource:
    return MapSource(Numbers(size), SampleOrder(size, seed), epoch_end=epoch_end, **options)


def steps_of(
    source: MapSource,
    weights: tuple[int, ...],
    global_batch: int,
    count: int,
    *,
    cursor: Cursor | None = None,
    granularity: int = 1,
    workers: int = 0,
) -> list[list[StepBatch]]:
    """The batches of all ranks for `count` steps: by step, then by rank."""
    by_rank = []
    for rank in range(len(weights)):
        share = ShareOfStep(rank, weights, global_batch, granularity, workers)
        by_rank.append(list(itertools.islice(source.open(share, cursor or Cursor()), count)))
    return [list(step) for step in zip(*by_rank, strict=True)]


def samples_of(step: list[StepBatch]) -> list[int]:
    """The sample numbers of one step over all ranks, in rank order."""
    return [n for batch in step if batch.data is not None for n in batch.data.tolist()]


def test_ten_samples_over_four_ranks_are_exactly_ten() -> None:
    source = source_of(10)
    steps = steps_of(source, (1, 1, 1, 1), 4, source.steps_in_epochs(1, 4))
    seen = [number for step in steps for number in samples_of(step)]
    assert Counter(seen) == Counter(range(10))
    assert [[batch.count for batch in step] for step in steps] == [
        [1, 1, 1, 1],
        [1, 1, 1, 1],
        [1, 1, 0, 0],
    ]
    assert [step[0].global_count for step in steps] == [4, 4, 2]


@pytest.mark.parametrize(
    ("epoch_end", "counts", "cursors"),
    [
        ("short", [4, 4, 2, 4, 4, 2], [(0, 4), (0, 8), (0, 10), (1, 4), (1, 8), (1, 10)]),
        ("wrap", [4, 4, 4, 4, 4, 4], [(0, 4), (0, 8), (1, 2), (1, 6), (1, 10), (2, 4)]),
        ("drop", [4, 4, 4, 4, 4, 4], [(0, 4), (0, 8), (1, 4), (1, 8), (2, 4), (2, 8)]),
    ],
)
def test_the_three_rules_for_an_epochs_end(
    epoch_end: str, counts: list[int], cursors: list[tuple[int, int]]
) -> None:
    source = source_of(10, epoch_end)
    steps = steps_of(source, (1,), 4, 6)
    assert [step[0].global_count for step in steps] == counts
    assert [(step[0].cursor.epoch, step[0].cursor.offset) for step in steps] == cursors
    order = SampleOrder(10, 5)
    expected = {
        "short": [order.samples(e, 0, 10).tolist() for e in range(2)],
        "wrap": [order.samples(e, 0, 10).tolist() for e in range(2)]
        + [order.samples(2, 0, 4).tolist()],
        "drop": [order.samples(e, 0, 8).tolist() for e in range(3)],
    }[epoch_end]
    seen = [number for step in steps for number in samples_of(step)]
    assert seen == [number for epoch in expected for number in epoch]


def test_wrap_goes_through_several_epochs_in_one_step() -> None:
    source = source_of(3, "wrap")
    (step,) = steps_of(source, (1, 1), 8, 1)
    assert Counter(samples_of(step)[:6]) == Counter([0, 1, 2] * 2)
    assert step[0].cursor == Cursor(2, 2)
    assert step[0].epoch == 0


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 60),
    global_batch=st.integers(1, 40),
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any),
    granularity=st.integers(1, 5),
    epoch_end=st.sampled_from(["short", "wrap", "drop"]),
    seed=st.integers(0, 9),
)
def test_any_ranks_see_what_one_rank_sees(
    *,
    size: int,
    global_batch: int,
    weights: list[int],
    granularity: int,
    epoch_end: str,
    seed: int,
) -> None:
    if epoch_end == "drop":
        global_batch = min(global_batch, size)
    source = source_of(size, epoch_end, seed)
    alone = steps_of(source, (1,), global_batch, 6)
    together = steps_of(source, tuple(weights), global_batch, 6, granularity=granularity)
    for (one,), step in zip(alone, together, strict=True):
        assert samples_of(step) == one.data.tolist()
        assert {batch.cursor for batch in step} == {one.cursor}
        assert {batch.global_count for batch in step} == {one.global_count}
        assert tuple(batch.count for batch in step) == step[0].counts
        assert [batch.first for batch in step] == [
            sum(step[0].counts[:rank]) for rank in range(len(step))
        ]
        holders = [batch.count for batch in step if batch.count]
        assert all(count % granularity == 0 for count in holders[:-1])
        assert all(batch.data is None for batch in step if not batch.count)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 60),
    global_batch=st.integers(1, 25),
    before=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    after=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    stop_at=st.integers(1, 8),
    epoch_end=st.sampled_from(["short", "wrap", "drop"]),
)
def test_resuming_anywhere_on_other_ranks_goes_on_with_the_next_sample(
    *,
    size: int,
    global_batch: int,
    before: list[int],
    after: list[int],
    stop_at: int,
    epoch_end: str,
) -> None:
    if epoch_end == "drop":
        global_batch = min(global_batch, size)
    source = source_of(size, epoch_end)
    unbroken = steps_of(source, (1,), global_batch, stop_at + 4)
    first = steps_of(source, tuple(before), global_batch, stop_at)
    then = steps_of(source, tuple(after), global_batch, 4, cursor=first[-1][0].cursor)
    assert [samples_of(step) for step in first + then] == [samples_of(step) for step in unbroken]


@pytest.mark.parametrize("collated", [False, True])
def test_loader_processes_give_the_same(collated: bool) -> None:
    data = ManyNumbers(23) if collated else Numbers(23)
    source = MapSource(data, SampleOrder(23, 1), epoch_end="wrap", collated=collated)
    plain = steps_of(source, (2, 1), 5, 9)
    loaded = steps_of(source, (2, 1), 5, 9, workers=2)
    assert [samples_of(step) for step in loaded] == [samples_of(step) for step in plain]
    assert [step[1].cursor for step in loaded] == [step[1].cursor for step in plain]


@pytest.mark.timeout(30)
def test_a_rank_without_a_share_does_not_hang_its_loader() -> None:
    steps = steps_of(source_of(10), (1, 0), 4, 3, workers=1)
    assert [step[1].count for step in steps] == [0, 0, 0]
    assert all(step[1].data is None for step in steps)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 60),
    global_batch=st.integers(1, 70),
    epochs=st.integers(1, 4),
    epoch_end=st.sampled_from(["short", "wrap", "drop"]),
)
def test_steps_in_epochs_equals_counting(
    size: int, global_batch: int, epochs: int, epoch_end: str
) -> None:
    if epoch_end == "drop":
        global_batch = min(global_batch, size)
    source = source_of(size, epoch_end)
    steps = source.steps_in_epochs(epochs, global_batch)
    walked = list(itertools.islice(source.walk(Cursor(), global_batch), steps + 1))
    taken = [sum(len(span) for span in spans if span.epoch < epochs) for spans, _ in walked]
    assert all(taken[:steps])  # every step has samples of these epochs
    assert taken[steps] == 0  # and the one after has none
    if epoch_end != "drop":
        assert sum(taken) == size * epochs


def test_drop_with_fewer_samples_than_a_batch_is_refused() -> None:
    source = source_of(3, "drop")
    with pytest.raises(BadInput, match="leaves nothing of 3 samples"):
        source.steps_in_epochs(1, 4)
    with pytest.raises(BadInput, match="leaves nothing"):
        steps_of(source, (1,), 4, 1)


def test_samples_of_several_fields_are_put_together() -> None:
    pairs = [(torch.tensor([float(n)]), n * n) for n in range(6)]
    source = MapSource(pairs, SampleOrder(6, 0, shuffle=False))
    (step,) = steps_of(source, (1,), 4, 1)
    values, squares = step[0].data
    assert values.tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert squares.tolist() == [0, 1, 4, 9]


def test_a_source_without_a_state_has_an_empty_one() -> None:
    source = source_of(3)
    assert source.state_dict() == {}
    source.load_state_dict({})


class Noisy:
    """Samples with random augmentation, as many image data sets have."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index), torch.rand(()).item(), random.random()])


def noisy_steps(workers: int, cursor: Cursor, count: int) -> list[Tensor]:
    source = MapSource(Noisy(), SampleOrder(20, 3))
    batches = source.open(ShareOfStep(0, (1,), 5, workers=workers), cursor)
    return [next(batches).data for _ in range(count)]


def test_random_augmentation_depends_on_the_position_alone() -> None:
    unbroken = noisy_steps(0, Cursor(), 6)
    torch.manual_seed(99)
    random.seed(99)
    resumed = noisy_steps(2, Cursor(0, 10), 4)
    assert torch.equal(torch.stack(unbroken[2:]), torch.stack(resumed))
    drawn = torch.stack(unbroken)[..., 1:].flatten()
    assert len(set(drawn.tolist())) == drawn.numel()


def test_reading_ahead_gives_the_same_items_and_errors_in_their_place() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2, 3)
        raise ValueError("after three")

    got = ahead(items(), 2)
    assert [next(got) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="after three"):
        next(got)
    assert list(ahead(iter([5, 6]), 4)) == [5, 6]
    read: list[int] = []
    begun = ahead((read.append(item) or item for item in range(100)), 3)
    assert next(begun) == 0
    begun.close()
    assert len(read) <= 5


@pytest.mark.parametrize(("collated", "workers"), [(False, 0), (False, 1), (True, 0)])
def test_shares_that_change_lose_nothing_of_what_was_read_ahead(
    collated: bool, workers: int
) -> None:
    """Three steps in shares 8 and 8, though the loader is further, then the rest in 11 and 5."""
    data = ManyNumbers(66) if collated else Numbers(66)
    source = MapSource(data, SampleOrder(66, 5), collated=collated)
    equal = steps_of(source, (8, 8), 16, 3, workers=workers)
    cursor = equal[-1][0].cursor
    changed = steps_of(source, (11, 5), 16, 7, cursor=cursor, workers=workers)
    undisturbed = steps_of(source, (1,), 16, 10)
    assert [samples_of(step) for step in equal + changed] == list(map(samples_of, undisturbed))
    assert [[batch.count for batch in step] for step in changed[:2]] == [[11, 5], [1, 1]]
