"""Where a step's samples come from: a share at a time, with true counts and a cursor.

The cursor counts what all ranks together have taken, so it means the same on any number of ranks.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, default_collate

from drumline.errors import BadInput
from drumline.planning.shares import cut_shares
from drumline.training.noise import seed_generators
from drumline.training.order import SampleOrder, mix

T = TypeVar("T")
READ_AHEAD = 2
"""Steps read while the device works on earlier ones."""
POSITIONS_AT_ONCE, STEPS_AT_ONCE = 2**16, 16
"""For so many samples of a rank their numbers are worked out together, in so many steps at most."""


@dataclass(frozen=True)
class Cursor:
    """How far a source is: the epoch, and the samples of it already taken by all ranks."""

    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Span:
    """Consecutive positions start..stop-1 of one epoch."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class StepBatch:
    """One step's data for this rank.

    Attributes:
        data: The rank's samples (a tensor, or tuple, list or dict of tensors with the samples in
            dim 0), on the CPU; None if the rank's share of this step is empty.
        count: Samples in `data`.
        global_count: Samples over all ranks, what the loss is divided by.
        counts: Samples of every rank.
        first: Position of this rank's first sample within the step.
        cursor: Where the source stands once this step is taken.
        epoch: The epoch the step began in.
        planned: Number of the step as the run was planned, where a source leaves steps out; the
            learning rate is a function of it. None: the number of steps before it.
    """

    data: Any
    count: int
    global_count: int
    counts: tuple[int, ...]
    first: int
    cursor: Cursor
    epoch: int
    planned: int | None = None


class Source(ABC):
    """The seam through which data enters the one Trainer.

    `reshares` says whether `open` may be called again with another share while a run goes on. What
    the source gave before is then let go, taken or not.
    """

    reshares: ClassVar[bool] = False

    @abstractmethod
    def open(self, share: ShareOfStep, cursor: Cursor) -> Iterator[StepBatch]:
        """Batches from `cursor` on for one rank. If they end, they do so on all ranks together,
        and the run is done.
        """

    @abstractmethod
    def steps_in_epochs(self, epochs: int, global_batch: int) -> int:
        """How many steps `epochs` passes over the data take."""

    def planned_steps(self, global_batch: int) -> int | None:
        """How many steps a run takes at most, where the task's own keys say so; else None."""
        del global_batch
        return None

    def shapes(self, share: ShareOfStep) -> Iterator[StepBatch] | None:
        """For a memory trace, of a source that works on the device itself: batches as `open` gives
        them, where tensors have shapes and no values. None: a batch is read on the host, and its
        size on the device is all there is to know.
        """
        del share
        return None

    def close(self) -> None:
        """Let go of processes and the like, once the run has ended."""

    def state_dict(self) -> dict[str, Any]:
        """What the source must remember besides the cursor (an environment's state, say)."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        del state


@dataclass(frozen=True)
class ShareOfStep:
    """Which part of every step belongs to a rank.

    Attributes:
        rank: This rank.
        weights: Relative sizes of the ranks' shares; equal for equal ranks.
        global_batch: Samples of a full step.
        granularity: Shares are whole multiples of this, except the last of a short step.
        workers: Loader processes.
    """

    rank: int
    weights: tuple[int, ...]
    global_batch: int
    granularity: int = 1
    workers: int = 0


class MapDataset(Protocol):
    """A data set read by number. One with `__getitems__` is asked for many at once."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class MapSource(Source):
    """Samples of a map-style data set, in the order of `SampleOrder`.

    Args:
        dataset: The data set. If it has `__getitems__(numbers) -> batch` and `collated` is true,
            what that returns is the batch; otherwise samples are put together by `collate`.
        order: The order of samples.
        epoch_end: What becomes of a last batch that is not full: "short" uses it as it is, "wrap"
            fills it from the next epoch, "drop" leaves it out.
        collate: As in torch's DataLoader.
        collated: Whether `__getitems__` takes an array of numbers and returns a whole batch. Such
            a set draws nothing at random.
    """

    reshares = True

    def __init__(
        self,
        dataset: MapDataset,
        order: SampleOrder,
        *,
        epoch_end: str = "short",
        collate: Callable[[list[Any]], Any] | None = None,
        collated: bool = False,
        pin_memory: bool = False,
    ) -> None:
        self.dataset = dataset
        self.order = order
        self.epoch_end = epoch_end
        self.collated = collated
        self.collate = collate or (_as_it_is if collated else default_collate)
        self.pin_memory = pin_memory

    def open(self, share: ShareOfStep, cursor: Cursor) -> Iterator[StepBatch]:
        """Batches of the rank from `cursor` on, without end."""
        loader = iter(
            DataLoader(
                _ShareReader(self.dataset, collated=self.collated),  # type: ignore[arg-type]
                batch_sampler=_RankSampler(self, share, cursor),  # type: ignore[arg-type]
                num_workers=share.workers,
                collate_fn=self.collate,
                pin_memory=self.pin_memory,
                persistent_workers=False,
            )
        )
        batches = self._batches(loader, share, cursor)
        # Reading ahead in a thread is left to sets that draw nothing at random: the generators
        # are this process's, and the step seeds them meanwhile.
        return ahead(batches, READ_AHEAD) if self.collated and not share.workers else batches

    def _batches(
        self, loader: Iterator[Any], share: ShareOfStep, cursor: Cursor
    ) -> Iterator[StepBatch]:
        for spans, after in self.walk(cursor, share.global_batch):
            total = sum(map(len, spans))
            counts = cut_shares(total, share.weights, share.granularity)
            count = counts[share.rank]
            yield StepBatch(
                data=next(loader) if count else None,
                count=count,
                global_count=total,
                counts=counts,
                first=sum(counts[: share.rank]),
                cursor=after,
                epoch=spans[0].epoch,
            )

    def walk(self, cursor: Cursor, global_batch: int) -> Iterator[tuple[list[Span], Cursor]]:
        """The spans of every step from `cursor` on, each with the cursor after it."""
        size = self.order.size
        self._check_drop(global_batch)
        epoch, offset = cursor.epoch, cursor.offset
        while True:
            left = size - offset
            if left == 0 or (self.epoch_end == "drop" and left < global_batch):
                epoch, offset = epoch + 1, 0
                left = size
            spans = [Span(epoch, offset, offset + min(global_batch, left))]
            missing = global_batch - len(spans[0])
            while missing and self.epoch_end == "wrap":
                epoch += 1
                spans.append(Span(epoch, 0, min(missing, size)))
                missing -= len(spans[-1])
            epoch, offset = spans[-1].epoch, spans[-1].stop
            yield spans, Cursor(epoch, offset)

    def numbers(self, spans: Sequence[Span]) -> NDArray[np.int64]:
        """Sample numbers at the positions of some spans, one after the other."""
        found = []
        for epoch, same in groupby(spans, key=lambda span: span.epoch):
            ranges = [np.arange(span.start, span.stop, dtype=np.int64) for span in same]
            found.append(self.order.at(epoch, np.concatenate(ranges)))
        return np.concatenate(found)

    def steps_in_epochs(self, epochs: int, global_batch: int) -> int:
        """How many steps `epochs` passes over the data take."""
        size = self.order.size
        self._check_drop(global_batch)
        if self.epoch_end == "wrap":
            return -(-epochs * size // global_batch)
        if self.epoch_end == "drop":
            return epochs * (size // global_batch)
        return epochs * -(-size // global_batch)

    def _check_drop(self, global_batch: int) -> None:
        if self.epoch_end == "drop" and self.order.size < global_batch:
            raise BadInput(
                f"epoch_end=drop leaves nothing of {self.order.size} samples with global_batch "
                f"{global_batch}.",
                remedy="Use epoch_end=short or wrap, or a smaller global_batch.",
            )


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """The same items, computed up to `depth` ahead in a thread. Errors come where they belong."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        waiting = deque(pool.submit(next, items) for _ in range(depth))
        try:
            while True:
                item = waiting.popleft().result()
                waiting.append(pool.submit(next, items))
                yield item
        except StopIteration:
            return
        finally:
            for future in waiting:
                future.cancel()


class _RankSampler:
    """The sample numbers of one rank's share of every step, leaving out empty shares.

    Numbers of several steps are worked out at once: a thread that reads ahead has to wait for the
    interpreter after each of the many small calls that this takes.
    """

    def __init__(self, source: MapSource, share: ShareOfStep, cursor: Cursor) -> None:
        self.source, self.share, self.cursor = source, share, cursor

    def __iter__(self) -> Iterator[_Ask]:
        if not self.share.weights[self.share.rank]:
            return  # there is nothing to look for, however far a loader looks ahead
        shares = self._shares()
        while True:
            some = list(islice(shares, self._steps_at_once()))
            numbers = self.source.numbers([span for spans, _ in some for span in spans])
            ends = np.cumsum([sum(map(len, spans)) for spans, _ in some])
            for own, (_, seed) in zip(np.split(numbers, ends[:-1]), some, strict=True):
                yield _Ask(own, seed)

    def _steps_at_once(self) -> int:
        share = self.share
        mine = share.global_batch * share.weights[share.rank] // sum(share.weights)
        return min(STEPS_AT_ONCE, max(1, POSITIONS_AT_ONCE // max(1, mine)))

    def _shares(self) -> Iterator[tuple[list[Span], int]]:
        """The spans of this rank's samples in every step, and the step's seed for it."""
        share, order = self.share, self.source.order
        for spans, _ in self.source.walk(self.cursor, share.global_batch):
            counts = cut_shares(sum(map(len, spans)), share.weights, share.granularity)
            count, first = counts[share.rank], sum(counts[: share.rank])
            if count:
                seed = mix(order.seed, spans[0].epoch, spans[0].start + first)
                yield _part(spans, first, count), seed


def _part(spans: Sequence[Span], first: int, count: int) -> list[Span]:
    """`count` positions of consecutive spans, from their position `first` on."""
    found = []
    for span in spans:
        low, high = max(0, first), min(len(span), first + count)
        if low < high:
            found.append(Span(span.epoch, span.start + low, span.start + high))
        first -= len(span)
    return found


@dataclass(frozen=True)
class _Ask:
    """The sample numbers of a share, and the seed for random transforms on them."""

    numbers: NDArray[np.int64]
    seed: int


class _ShareReader:
    """Reads a share at a time. Random transforms in the data set are seeded by where the share
    begins, so they do not depend on loader processes or on what ran before. A set whose batches
    come collated draws nothing at random, and takes the numbers as an array.
    """

    def __init__(self, dataset: MapDataset, *, collated: bool) -> None:
        self.dataset, self.collated = dataset, collated

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, ask: _Ask) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        if self.collated and many:
            return many(ask.numbers)
        seed_generators(ask.seed >> 1)
        random.seed(ask.seed)
        np.random.seed(ask.seed & 0xFFFFFFFF)
        numbers = ask.numbers.tolist()
        return many(numbers) if many else [self.dataset[number] for number in numbers]


def _as_it_is(batch: Any) -> Any:
    return batch
