"""A user's DataLoader, cut among ranks: each gets its share of every one of the user's batches.

The loader itself is kept: a copy of it runs with all its options (workers, pinning, collate,
persistence, prefetch, ...), and only what decides *which* samples it reads is exchanged. Every rank
goes through its loop equally often. Where a rank has no sample of a batch, it is given a *padding*
batch that counts nothing, so that no rank waits for another and none is averaged in wrongly.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from drumline.distributed import ControlPlane, World
from drumline.errors import BadInput
from drumline.planning.shares import cut_shares
from drumline.training.batches import to_device
from drumline.training.order import SampleOrder, mix


@dataclass(frozen=True)
class Taken:
    """A batch as it comes from a loader. `count` is None where it cannot be known."""

    data: Any
    count: int | None
    padding: bool = False


@dataclass
class InHand:
    """The batch that the loop is working on; None between loops."""

    batch: Taken | None = None


class PreparedLoader(ABC):
    """Batches of this rank, on its device. What it does not have itself, the user's loader has.

    Each pass over it is an epoch with an order of its own. One that was left early is not gone on
    with: the next pass is a new epoch, as with torch's loaders. After `load_state_dict` the next
    pass goes on where the state was taken.

    Args:
        loader: The user's loader, or its copy.
        world: Who takes part.
        hand: Where the batch that was given out last is noted.
        seed: Of the order and of the workers.
    """

    def __init__(self, loader: Any, world: World, hand: InHand, seed: int) -> None:
        self.loader, self.world, self.seed = loader, world, seed
        self.epoch = 0
        self._hand, self._taken, self._resumed = hand, 0, False

    @abstractmethod
    def batches(self, start: int) -> Iterator[Taken]:
        """This epoch's batches from number `start` on; as many on every rank."""

    def __iter__(self) -> Iterator[Any]:
        if self._taken and not self._resumed:
            self.epoch, self._taken = self.epoch + 1, 0
        self._resumed = False
        outer = self._hand.batch
        try:
            for taken in self.batches(self._taken):
                self._taken += 1
                self._hand.batch = taken
                yield to_device(taken.data, self.world.device)
            self.epoch, self._taken = self.epoch + 1, 0
        finally:
            self._hand.batch = outer

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its batches were given out."""
        return {"epoch": self.epoch, "taken": self._taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there with the next pass."""
        self.epoch, self._taken, self._resumed = state["epoch"], state["taken"], True


class CutLoader(PreparedLoader):
    """A map-style DataLoader: its `batch_sampler` gives a rank's part of every global batch."""

    def __init__(self, loader: DataLoader[Any], world: World, hand: InHand, seed: int) -> None:
        self._sampler = _ShareSampler(_batches_of(loader, world, seed), world)
        self._generator = torch.Generator() if loader.generator is None else None
        kept = copy_with(
            loader,
            batch_sampler=self._sampler,
            generator=loader.generator or self._generator,
            in_order=True,  # else ranks would work on parts of different batches
        )
        super().__init__(kept, world, hand, seed)

    def batches(self, start: int) -> Iterator[Taken]:
        """The rank's parts; where it has none, one sample of the batch as padding."""
        if self._generator is not None:
            self._generator.manual_seed(mix(self.seed, self.epoch, self.world.rank) >> 1)
        self._sampler.begin(self.epoch, start)
        parts = iter(self.loader)
        counts = self._sampler.counts
        for data in parts:
            count = counts.popleft()
            yield Taken(data, count, padding=count == 0)


def copy_with(loader: DataLoader[Any], **changed: Any) -> DataLoader[Any]:
    """A copy of a loader, of the same class and with all its options but those changed.

    Torch refuses to exchange a sampler in a loader that runs; this one has not begun.
    """
    kept = copy.copy(loader)
    kept.__dict__.update(changed, _iterator=None)
    return kept


def share_weights(world: World) -> Sequence[int]:
    """In which proportion ranks share a batch.

    Raises:
        BadInput: If the config names shares for another number of ranks, or wants them measured.
    """
    if world.config.shares == "measured":
        raise BadInput(
            "distributed.shares=measured is the Trainer's: in a loop of one's own, work cannot be "
            "told apart from waiting for others.",
            remedy="Give a number for each rank, in proportion to their speeds, or equal shares.",
        )
    weights = world.config.fixed_shares or [1] * world.size
    if len(weights) != world.size:
        raise BadInput(
            f"distributed.shares {weights} are for {len(weights)} ranks, and there are "
            f"{world.size}.",
            remedy="Give one share for each rank, or none for equal shares.",
        )
    return weights


class _Batches(ABC):
    """The global batches of an epoch, as sample numbers; the same on every rank."""

    @abstractmethod
    def of_epoch(self, epoch: int) -> Iterator[list[Any]]:
        """All of them in order. Ranks must walk in step."""

    @abstractmethod
    def __len__(self) -> int: ...


class _Ordered(_Batches):
    """Batches of the data set's own order, or of a new shuffle each epoch. Needs no messages."""

    def __init__(self, order: SampleOrder, batch_size: int, drop_last: bool) -> None:
        self._order, self._size, self._drop_last = order, batch_size, drop_last

    def of_epoch(self, epoch: int) -> Iterator[list[Any]]:
        for number in range(len(self)):
            start = number * self._size
            stop = min(start + self._size, self._order.size)
            yield self._order.samples(epoch, start, stop).tolist()

    def __len__(self) -> int:
        whole, rest = divmod(self._order.size, self._size)
        return whole + (rest > 0 and not self._drop_last)


class _FromRankZero(_Batches):
    """Batches of a user's sampler, as rank 0's copy of it draws them.

    Each is sent to all when it is drawn, so a sampler may be random, endless, or follow the
    training, and need not be seeded alike on all ranks.
    """

    def __init__(self, sampler: Any, inner: Any, control: ControlPlane, is_main: bool) -> None:
        self._sampler, self._inner, self._control, self._is_main = sampler, inner, control, is_main

    def of_epoch(self, epoch: int) -> Iterator[list[Any]]:
        drawn: Iterator[Any] = iter(())
        if self._is_main:
            for sampler in (self._sampler, self._inner):
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)
            drawn = iter(self._sampler)
        while True:
            numbers = next(drawn, None)
            agreed = self._control.broadcast(None if numbers is None else list(numbers))
            if agreed is None:
                return
            yield agreed

    def __len__(self) -> int:
        return len(self._sampler)


class _ShareSampler:
    """This rank's sample numbers of every global batch, at consecutive positions of it.

    `counts` has the true count of each batch that was asked for and not yet given out.
    """

    def __init__(self, batches: _Batches, world: World) -> None:
        self._batches, self._rank = batches, world.rank
        self._weights = share_weights(world)
        self.counts: deque[int] = deque()
        self._epoch = self._start = 0

    def begin(self, epoch: int, start: int) -> None:
        """Which epoch the next pass is, and with which of its batches it begins."""
        self._epoch, self._start = epoch, start

    def __iter__(self) -> Iterator[list[Any]]:
        self.counts = deque()  # of this pass; a pass that was left may still hold its own
        return self._walk(self.counts)

    def _walk(self, told: deque[int]) -> Iterator[list[Any]]:
        for numbers in islice(self._batches.of_epoch(self._epoch), self._start, None):
            share, count = cut(numbers, self._weights, self._rank)
            told.append(count)
            yield share

    def __len__(self) -> int:
        return len(self._batches)


def cut(batch: Sequence[Any], weights: Sequence[int], rank: int) -> tuple[list[Any], int]:
    """A rank's part of a global batch and its size; the first sample and 0 if it has none."""
    counts = cut_shares(len(batch), weights)
    first = sum(counts[:rank])
    return list(batch[first : first + counts[rank]] or batch[:1]), counts[rank]


def _batches_of(loader: DataLoader[Any], world: World, seed: int) -> _Batches:
    """Our order where the loader's sampler is one of torch's two usual ones, else the sampler."""
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    inner = getattr(batch_sampler, "sampler", sampler)
    if isinstance(inner, DistributedSampler):
        raise BadInput(
            "The loader has a DistributedSampler, which cuts (and pads) the data already.",
            remedy="Give prepare() a plain DataLoader with shuffle=True, whose batch_size is that "
            "of all ranks together; or own_part=True to leave the loader as it is.",
        )
    if batch_sampler is None:
        raise no_batches("with batch_size=None")
    size = len(loader.dataset)  # type: ignore[arg-type]
    shuffled = type(inner) is RandomSampler and not inner.replacement and inner.num_samples == size
    plain = shuffled or type(inner) is SequentialSampler
    if type(batch_sampler) is BatchSampler and plain and len(inner) == size > 0:  # type: ignore[arg-type]
        order = SampleOrder(size, seed, shuffle=shuffled)
        return _Ordered(order, batch_sampler.batch_size, batch_sampler.drop_last)
    return _FromRankZero(batch_sampler, inner, world.control, world.is_main)


def no_batches(what: str) -> BadInput:
    """The error for a loader whose batches cannot be cut, because it does not make them."""
    return BadInput(
        f"A DataLoader {what} cannot be cut among ranks without loss: what one item of it holds "
        "is not known.",
        remedy="Give it a batch_size (of all ranks together) and let the data set give single "
        "samples; or, if the data set gives every rank data of its own, prepare(own_part=True).",
    )
