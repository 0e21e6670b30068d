"""A prepared loader is the user's, but for which samples it reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    get_worker_info,
)

from drumline.config import ClusterEnvironment, DistributedConfig
from drumline.distributed import LocalControl
from drumline.errors import BadInput, DataError
from drumline.training.own_loop import OwnLoop


class Numbers(Dataset[int]):
    """The numbers 0..size-1."""

    def __init__(self, size: int = 10) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __init__(self, size: int = 10) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class Drawn(Numbers):
    """A random number for each sample."""

    def __getitem__(self, index: int) -> Any:
        return torch.randint(1 << 30, ()).item()


class Pid(Numbers):
    def __getitem__(self, index: int) -> Any:
        return os.getpid()


class Offset(Numbers):
    """Adds what a worker_init_fn wrote into it."""

    offset = 0

    def __getitem__(self, index: int) -> Any:
        return index + self.offset


class Special(DataLoader[Any]):
    """A user's own subclass."""


def rank_of(size: int, rank: int = 0, shares: list[int] | None = None, seed: int = 0) -> OwnLoop:
    """One rank of a world, without the others: what it reads needs no messages."""
    alone = ClusterEnvironment("alone", rank, size, rank, size, "127.0.0.1", 0)
    config, device = DistributedConfig(shares=shares or "equal"), torch.device("cpu")
    return OwnLoop(rank, size, rank, device, "none", LocalControl(), config, alone, seed)


def test_measured_shares_are_refused_with_a_way_out() -> None:
    alone = ClusterEnvironment("alone", 0, 2, 0, 2, "127.0.0.1", 0)
    measured = DistributedConfig(shares="measured")
    world = OwnLoop(0, 2, 0, torch.device("cpu"), "none", LocalControl(), measured, alone, 0)
    with pytest.raises(BadInput, match="shares=measured is the Trainer's") as refused:
        world.prepare(DataLoader(Numbers(), batch_size=4))
    assert refused.value.remedy


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def collate(samples: list[int]) -> torch.Tensor:
    return torch.tensor(samples) * 10


def init(worker: int) -> None:
    del worker
    info = get_worker_info()
    assert info is not None
    info.dataset.offset = 100  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [Numbers(), Stream()])
def test_every_option_is_kept(data: Any) -> None:
    generator = torch.Generator()
    given = Special(
        data,
        batch_size=4,
        num_workers=2,
        collate_fn=collate,
        pin_memory=True,
        drop_last=True,
        timeout=5,
        worker_init_fn=init,
        multiprocessing_context="spawn",
        generator=generator,
        prefetch_factor=3,
        persistent_workers=True,
    )
    before = dict(given.__dict__)
    kept = rank_of(3).prepare(given)
    exchanged = {"batch_sampler", "collate_fn"}
    for name in set(before) - exchanged - {"_iterator"}:
        assert getattr(kept, name) is before[name], name
    assert kept.batch_size == 4
    assert kept.dataset is data
    assert kept.multiprocessing_context.get_start_method() == "spawn"
    assert type(kept.loader) is Special
    assert given.__dict__ == before  # the user's own loader is as it was
    if isinstance(data, Numbers):
        assert len(kept) == 2


def test_collate_and_drop_last_do_their_work() -> None:
    for data in (Numbers(), Stream()):
        loader = DataLoader(data, 4, collate_fn=collate, drop_last=True)
        assert lists(rank_of(2, 1).prepare(loader)) == [[20, 30], [60, 70]]


def test_workers_are_set_up_by_the_user_and_persist() -> None:
    loader = DataLoader(Offset(4), 2, num_workers=1, worker_init_fn=init)
    assert lists(rank_of(1).prepare(loader)) == [[100, 101], [102, 103]]
    kept = rank_of(2).prepare(DataLoader(Pid(4), 4, num_workers=1, persistent_workers=True))
    first, second = {int(n) for b in kept for n in b}, {int(n) for b in kept for n in b}
    assert first == second != {os.getpid()}


def test_the_users_generator_seeds_the_workers() -> None:
    def drawn(seed: int | None, rank: int = 0) -> list[list[int]]:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        loader = DataLoader(Drawn(4), 2, num_workers=1, generator=generator)
        return lists(rank_of(2, rank).prepare(loader))

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(None) == drawn(None) != drawn(None, rank=1)  # ours differs by rank


@pytest.mark.parametrize("data", [Numbers(), Stream()])
@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        (None, [[[0, 1], [4, 5], [8]], [[2], [6], [9]], [[3], [7], [8]]]),
        ([3, 0, 1], [[[0, 1, 2], [4, 5, 6], [8, 9]], [[0], [4], [8]], [[3], [7], [8]]]),
    ],
)
def test_ranks_get_consecutive_positions_and_padding_where_they_have_none(
    data: Any, shares: list[int] | None, expected: list[list[list[int]]]
) -> None:
    counted = []
    for rank in range(3):
        world = rank_of(3, rank, shares)
        loader = world.prepare(DataLoader(data, 4))
        seen = []
        counted.append([])
        for batch in loader:
            seen.append(batch.tolist())
            counted[-1].append(world.count)
        assert seen == expected[rank]
    assert [sum(step) for step in zip(*counted, strict=True)] == [4, 4, 2]


def test_ten_samples_over_four_ranks_are_ten() -> None:
    def read(rank: int, epochs: int) -> list[list[int]]:
        loader = rank_of(4, rank).prepare(DataLoader(Numbers(10), 10, shuffle=True))
        return [next(iter(loader)).tolist() for _ in range(epochs)]

    ranks = [read(rank, 2) for rank in range(4)]
    assert [len(first) for first, _ in ranks] == [3, 3, 2, 2]
    first, second = ([n for rank in ranks for n in rank[epoch]] for epoch in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_a_pass_that_was_left_is_not_gone_on_with() -> None:
    loader = rank_of(1, seed=3).prepare(DataLoader(Numbers(), 5, shuffle=True))
    again = rank_of(1, seed=3).prepare(DataLoader(Numbers(), 5, shuffle=True))
    first = lists(again)
    second = lists(again)
    for _ in loader:
        break
    assert loader.epoch == 0
    assert lists(loader) == second != first


@pytest.mark.parametrize("data", [Numbers(), Stream()])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_goes_on_with_the_next_batch(data: Any, workers: int) -> None:
    def new() -> Any:
        shuffle = isinstance(data, Numbers) or None
        return rank_of(1).prepare(DataLoader(data, 3, shuffle=shuffle, num_workers=workers))

    whole = new()
    first, second = lists(whole), lists(whole)
    left = new()
    for number, _ in enumerate(left):
        if number == 1:
            break
    gone_on = new()
    gone_on.load_state_dict(left.state_dict())
    assert lists(gone_on) == first[2:]
    assert gone_on.epoch == 1
    assert lists(gone_on) == second


def test_a_loop_within_a_loop_gives_the_outer_batch_back() -> None:
    world = rank_of(1)
    outer, inner = world.prepare(DataLoader(Numbers(4), 4), DataLoader(Numbers(), 3))
    for _ in outer:
        assert world.count == 4
        assert [world.count for _ in inner] == [3, 3, 3, 1]
        for _ in inner:
            break
        assert world.count == 4
    with pytest.raises(BadInput, match="not known here"):
        _ = world.count


def test_samplers_are_told_the_epoch() -> None:
    class Told(list[int]):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter([self.epoch, self.epoch + 1])

    loader = rank_of(1).prepare(DataLoader(Numbers(), 2, sampler=Told([0, 1])))
    assert [lists(loader), lists(loader)] == [[[0, 1]], [[1, 2]]]


def test_an_endless_sampler_may_be_left() -> None:
    class Endless:
        def __iter__(self) -> Iterator[list[int]]:
            while True:
                yield [1, 2, 3]

    loader = rank_of(2).prepare(DataLoader(Numbers(), batch_sampler=Endless()))  # type: ignore[arg-type]
    assert [batch.tolist() for batch, _ in zip(loader, range(3), strict=False)] == [[1, 2]] * 3


def test_own_data_are_left_as_they_are() -> None:
    world = rank_of(2, 1)
    loader = world.prepare([torch.arange(3), torch.arange(2)], own_part=True)
    assert [world.count for _ in loader] == [3, 2]
    assert lists(loader) == [[0, 1, 2], [0, 1]]
    sampler = DistributedSampler(Numbers(8), num_replicas=2, rank=1, shuffle=True)
    loader = world.prepare(DataLoader(Numbers(8), 4, sampler=sampler), own_part=True)
    assert lists(loader) != lists(loader)  # shuffles each epoch unasked


class Different(LocalControl):
    """A control plane whose other rank read another stream, or one that had ended."""

    def __init__(self, **others: int) -> None:
        self.others = others

    def call(self, **values: int) -> Any:
        return super().call(**{k: max(v, self.others.get(k, v)) for k, v in values.items()})


@pytest.mark.parametrize("others", [{"ended": 1}, {"mark": 1 << 33}, {"least": 0}])
def test_streams_that_differ_are_refused(others: dict[str, int]) -> None:
    world = rank_of(1)
    object.__setattr__(world, "control", Different(**others))
    with pytest.raises(DataError, match="differ at batch 0"):
        list(world.prepare(DataLoader(Stream(), 4)))


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Numbers(), batch_size=None), "batch_size=None"),
        (DataLoader(Stream(), batch_size=None), "IterableDataset with batch_size=None"),
        (
            DataLoader(Numbers(), sampler=DistributedSampler(Numbers(), num_replicas=2, rank=0)),
            "DistributedSampler",
        ),
        ([1, 2], "list is not a module"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_a_way_out(loader: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        rank_of(2).prepare(loader)
    assert "own_part=True" in caught.value.remedy


def test_shares_for_another_number_of_ranks_are_refused() -> None:
    with pytest.raises(BadInput, match=r"\[3, 1\] are for 2 ranks, and there are 3"):
        rank_of(3, shares=[3, 1]).prepare(DataLoader(Numbers(), 4))


def test_an_empty_data_set_has_no_batches() -> None:
    assert list(rank_of(2).prepare(DataLoader(TensorDataset(torch.zeros(0, 1)), 4))) == []
    assert list(rank_of(2).prepare(DataLoader(Stream(0), 4))) == []
