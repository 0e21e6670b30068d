"""The step of a model in pipeline stages: the micro-batches of a share run through a schedule.

All else is the standard step's. There are no careful steps: while one stage runs out of memory the
others wait for it, so that ends the attempt, and the next begins with half the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from drumline.distributed.strategies.pipeline.conveyor import Conveyor
from drumline.distributed.strategies.pipeline.passes import Passes
from drumline.planning.shares import cut_micro_batches
from drumline.training.batches import layout, narrow
from drumline.training.source import StepBatch
from drumline.training.step import (
    StandardStep,
    StepParts,
    add_sums,
    metric_sums,
    seed_micro_batch,
)

Sums = dict[str, dict[str, Tensor]]


class PipelineStep(StandardStep):
    """Forward and backward by a schedule; then sum, clip, optimizer as in `StandardStep`."""

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        assert isinstance(parts.wrapped, Conveyor)
        self.conveyor = parts.wrapped
        self._company = None  # each pipeline runs as many passes as it has micro-batches

    def _accumulate(self, data: Any, batch: StepBatch, index: int, careful: bool) -> Sums | None:
        """Gradients over the whole global batch, in place."""
        del careful
        self.optimizer.zero_grad(set_to_none=True)
        sums = self._backwards(data, batch, index, overlap=False)
        self.strategy.reduce_gradients()
        return sums

    def _backwards(self, data: Any, batch: StepBatch, index: int, *, overlap: bool) -> Sums:
        """A pipeline whose share is empty does nothing."""
        del overlap
        sums: Sums = {"metric": {}, "step": {}}
        sizes = cut_micro_batches(batch.count, self.micro_batch, self.task.granularity)
        if not sizes:
            return sums
        starts = list(accumulate(sizes, initial=0))

        def loss(model: nn.Module, number: int) -> Tensor:
            micro = narrow(data, starts[number], sizes[number])
            losses = self.task.loss(model, micro)
            add_sums(sums["metric"], metric_sums(losses))
            add_sums(sums["step"], losses.step_sums)
            return losses.loss_sum * (self.scaler.scale / batch.global_count)

        @contextmanager
        def around(number: int, stage: int | None) -> Iterator[None]:
            seed_micro_batch(self.seed, index, batch.first + starts[number], stage)
            with self.arithmetic.autocast():
                yield

        self.conveyor.run(Passes(sizes, layout(data), loss, around))
        return self._known_to_all(sums)

    def _known_to_all(self, sums: Sums) -> Sums:
        """The last stage's sums, on all ranks of the pipeline."""
        flat = {f"{kind}/{name}": value for kind in sums for name, value in sums[kind].items()}
        shared = self.conveyor.shared(flat)
        found: Sums = {"metric": {}, "step": {}}
        for name, value in shared.items():
            kind, _, rest = name.partition("/")
            found[kind][rest] = value
        return found
