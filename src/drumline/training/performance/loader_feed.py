"""A user's DataLoader as a feed: read aside, so that its position and its draws stay untouched."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from drumline.planning.shares import cut_shares
from drumline.training.own_loop.loader import PreparedLoader, copy_with
from drumline.training.performance.loading import Feed, Reading
from drumline.training.performance.workload import LoopWorkload
from drumline.training.state import random_state, set_random_state

DEEPER = 4
"""Batches a worker reads ahead, where the default of 2 is not enough."""


class LoaderFeed(Feed):
    """The loader's first batches, from copies of it that have samplers of their own.

    Args:
        loader: What the user iterates; `use` changes it in place.
        share: This rank, and the relative sizes of all ranks' parts of a batch.
        device: Whether pinned memory is of use.
    """

    def __init__(self, loader: Any, share: tuple[int, Sequence[int]], device: torch.device) -> None:
        self.loader, self._share, self._device = loader, share, device
        self.workload: LoopWorkload | None = None
        self._refusal = _refusal(loader, len(share[1]))
        if self._refusal is None:
            self.reading = Reading(
                loader.num_workers, loader.prefetch_factor or 2, bool(loader.pin_memory)
            )
            self.batches = _length(loader)
            self._random = random_state()

    def why_not(self) -> str | None:
        """A DataLoader whose batches can be read a second time."""
        return self._refusal

    def first(self, count: int) -> list[Any]:
        """Its first batches, as a pass over it would give them."""
        before = random_state()
        try:
            return list(islice(self.open(self.reading), count))
        finally:
            set_random_state(before)

    def open(self, reading: Reading) -> Iterator[Any]:
        """A pass of a copy, with this rank's part of each batch."""
        set_random_state(self._random)
        memo = {id(self.loader.dataset): self.loader.dataset}
        batch_sampler = copy.deepcopy(self.loader.batch_sampler, memo)
        changed = {
            "sampler": copy.deepcopy(self.loader.sampler, memo),
            "generator": copy.deepcopy(self.loader.generator, memo),
            "batch_sampler": batch_sampler,
        }
        if len(self._share[1]) > 1:
            changed["batch_sampler"] = _Part(batch_sampler, *self._share)
        return iter(copy_with(self.loader, **changed, **_options(reading)))

    def train_on(self, batch: Any) -> None:
        """A step of the workload."""
        assert self.workload is not None
        self.workload.train_on(batch)

    def use(self, reading: Reading) -> None:
        """Change the user's loader."""
        self.loader.__dict__.update(_options(reading), _iterator=None)
        self.reading = reading

    def ladders(self, cpus: int) -> list[list[Reading]]:
        """Besides workers: pinned memory for GPUs, and a deeper queue."""
        pinned = [replace(self.reading, pinned=True)] if self._device.type == "cuda" else []
        deeper = [replace(self.reading, prefetch=DEEPER)] if self.reading.prefetch < DEEPER else []
        more, *fewer = super().ladders(cpus)
        return [pinned, more, deeper, *fewer]


class _Part:
    """A rank's part of every batch of a sampler; of one that is too small, a whole sample."""

    def __init__(self, batches: Any, rank: int, weights: Sequence[int]) -> None:
        self._batches, self._rank, self._weights = batches, rank, weights

    def __iter__(self) -> Iterator[list[Any]]:
        for batch in self._batches:
            numbers = list(batch)
            counts = cut_shares(len(numbers), self._weights)
            start = sum(counts[: self._rank])
            yield numbers[start : start + counts[self._rank]] or numbers[:1]

    def __len__(self) -> int:
        return len(self._batches)


def _options(reading: Reading) -> dict[str, Any]:
    return {
        "num_workers": reading.workers,
        "prefetch_factor": reading.prefetch if reading.workers else None,
        "pin_memory": reading.pinned,
    }


def _refusal(loader: Any, ranks: int) -> str | None:
    if isinstance(loader, PreparedLoader):
        return "the loader is cut among ranks already; call optimize before world.prepare"
    if not isinstance(loader, DataLoader):
        return f"{type(loader).__name__} is no DataLoader"
    if isinstance(loader.dataset, IterableDataset):
        return "a stream cannot be read twice"
    if loader.batch_sampler is None and ranks > 1:
        return "with batch_size=None a batch cannot be cut among ranks"
    return None


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:  # a sampler without a length
        return 1 << 30
