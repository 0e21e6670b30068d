"""Loaders whose length nobody knows before they end: IterableDatasets, and data that every rank
has for itself. Ranks agree before each batch whether there is one, so that none waits for another.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from drumline.distributed import World
from drumline.errors import DataError
from drumline.training.order import mix
from drumline.training.own_loop.loader import (
    InHand,
    PreparedLoader,
    Taken,
    copy_with,
    cut,
    no_batches,
    share_weights,
)

T = TypeVar("T")


class StreamLoader(PreparedLoader):
    """A DataLoader of an IterableDataset. Every rank reads the whole stream and keeps its part.

    The part is cut where samples are put together, so the data set, its workers and how it divides
    itself among them are untouched. With each batch the ranks compare a checksum of its first
    sample: if they read different streams, samples would be lost, and that is an error.
    """

    def __init__(self, loader: DataLoader[Any], world: World, hand: InHand, seed: int) -> None:
        if loader.batch_size is None:
            raise no_batches("of an IterableDataset with batch_size=None")
        self._generator = torch.Generator() if loader.generator is None else None
        kept = copy_with(
            loader,
            collate_fn=_ShareCollate(loader.collate_fn, share_weights(world), world.rank),
            generator=loader.generator or self._generator,
            in_order=True,
        )
        super().__init__(kept, world, hand, seed)

    def batches(self, start: int) -> Iterator[Taken]:
        """The rank's part of each batch of the stream; `start` batches are read and passed over."""
        key = mix(self.seed, self.epoch) >> 1
        if self._generator is not None:
            self._generator.manual_seed(key)
        # Without workers the data set draws from this process's generators, as the model does.
        apart = _Apart(key) if self.loader.num_workers == 0 else _directly
        portions: Iterator[_Portion] = apart(lambda: iter(self.loader))
        number = 0
        while self._agreed(portion := apart(lambda: next(portions, None)), number):
            if portion is not None and number >= start:
                yield Taken(portion.data, portion.samples, padding=portion.samples == 0)
            number += 1

    def _agreed(self, portion: _Portion | None, number: int) -> bool:
        """Whether there is a batch; it is the same one on all ranks, or this raises DataError."""
        ended, mark = portion is None, 0 if portion is None else portion.mark
        most = self.world.control.vote(ended=ended, goes_on=not ended, mark=mark, least=-mark)
        alike = most["mark"] == -most["least"] and not (most["ended"] and most["goes_on"])
        if not alike:
            raise DataError(
                f"The ranks' IterableDatasets differ at batch {number}: cut among ranks, samples "
                "would be lost or doubled.",
                remedy="Let the data set give every rank the same stream (seed its shuffle; take "
                "no part by rank); or, if each rank shall have its own, prepare(own_part=True).",
                batch=number,
            )
        return not ended


class OwnPartLoader(PreparedLoader):
    """Any iterable of batches that gives every rank data of its own, in batches of its own size.

    A rank whose data has ended repeats its last batch as padding until all have ended.
    """

    def batches(self, start: int) -> Iterator[Taken]:
        """The rank's batches, then padding; `start` batches are read and passed over."""
        sampler = getattr(self.loader, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        own, last, number = iter(self.loader), None, 0
        while True:
            batch = next(own, None)
            most = self.world.control.vote(goes_on=batch is not None, lacks=batch is None)
            if not most["goes_on"]:
                return
            if number == 0 and most["lacks"]:  # a rank with nothing at all borrows a batch
                last = next(b for b in self.world.control.gather(batch) if b is not None)
            last = last if batch is None else batch
            if number >= start:
                padding = batch is None
                yield Taken(last, 0 if padding else samples_in(last), padding)
            number += 1


class _Portion(NamedTuple):
    """A rank's part of a batch: put together, its true number of samples, and a mark of the whole
    batch. A tuple, because torch pins tuples.
    """

    data: Any
    samples: int
    mark: int


class _ShareCollate:
    """Cuts a batch's samples before the user's collate function puts them together.

    Runs in the loader's workers.
    """

    def __init__(
        self, collate: Callable[[list[Any]], Any], weights: Sequence[int], rank: int
    ) -> None:
        self._collate, self._weights, self._rank = collate, weights, rank

    def __call__(self, samples: list[Any]) -> _Portion:
        share, count = cut(samples, self._weights, self._rank)
        mark = zlib.crc32(_content(samples[0]), len(samples))
        return _Portion(self._collate(share), count, mark)


class _Apart:
    """Runs functions with random generators of their own, seeded once, in the place of the
    process's: torch's on the CPU, numpy's and Python's. So a stream that shuffles itself is the
    same on every rank, whatever the models there have drawn.
    """

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._state: Any = None

    def __call__(self, function: Callable[[], T]) -> T:
        outer = _generators()
        if self._seed is None:
            _set_generators(self._state)
        else:
            torch.default_generator.manual_seed(self._seed)
            random.seed(self._seed)
            np.random.seed(self._seed & 0xFFFFFFFF)
            self._seed = None
        try:
            return function()
        finally:
            self._state = _generators()
            _set_generators(outer)


def _directly(function: Callable[[], T]) -> T:
    return function()


def _generators() -> tuple[Tensor, Any, Any]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def _set_generators(state: tuple[Tensor, Any, Any]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


def _content(sample: Any) -> bytes:
    """Bytes that are equal for equal samples on any rank; of unknown types, the type's name."""
    if isinstance(sample, Tensor):
        return sample.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(sample, np.ndarray):
        return sample.tobytes()
    if isinstance(sample, dict):
        return b"".join(_content(item) for pair in sample.items() for item in pair)
    if isinstance(sample, list | tuple):
        return b"".join(map(_content, sample))
    if isinstance(sample, str | int | float | bytes | bool | np.generic | None):
        return repr(sample).encode()
    return type(sample).__name__.encode()


def samples_in(batch: Any) -> int | None:
    """The samples of a batch: the length of its first tensor; None if it has none."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else None
    parts = batch.values() if isinstance(batch, dict) else batch
    if isinstance(batch, dict | list | tuple):
        return next((n for n in map(samples_in, parts) if n is not None), None)
    return None
