"""Keeping ranks at the same number of passes, for modes whose forward and backward are collective.

A rank with fewer micro-batches than others, or with none at the end of an epoch, runs passes on
samples it has seen, whose loss is multiplied by zero.
"""

from __future__ import annotations

from typing import Any

from drumline.distributed import World
from drumline.planning.shares import cut_micro_batches
from drumline.training.batches import cloned, narrow, to_device
from drumline.training.source import StepBatch


class Company:
    """What a rank runs while it waits for the others.

    Attributes:
        filler: A few samples on this rank's device, from its last share; before it had any, another
            rank's.
    """

    def __init__(self, world: World, granularity: int) -> None:
        self.world, self.granularity = world, granularity
        self.filler: Any = None
        self._supplied: set[int] = set()

    def passes(self, batch: StepBatch, micro_batch: int) -> int:
        """Forwards and backwards of every rank in a step: as many as the busiest needs."""
        counts = batch.counts
        return max(len(cut_micro_batches(c, micro_batch, self.granularity)) for c in counts)

    def follow(self, batch: StepBatch, data: Any) -> None:
        """Take note of a step's samples. All ranks call it at every step.

        Args:
            batch: The step's batch.
            data: Its samples on the device; None if there are none.
        """
        size = min(batch.count, max(2, self.granularity))  # BatchNorm cannot take a single one
        if size:
            self.filler = narrow(data, 0, size)
        without = {rank for rank, count in enumerate(batch.counts) if not count}
        if without - self._supplied:
            mine = cloned(narrow(batch.data, 0, size)) if size else None
            offered = self.world.control.gather(mine)
            if self.filler is None:
                theirs = next(samples for samples in offered if samples is not None)
                self.filler = to_device(theirs, self.world.device)
        self._supplied.update(range(len(batch.counts)) if without else ())
        self._supplied |= {rank for rank, count in enumerate(batch.counts) if count}
