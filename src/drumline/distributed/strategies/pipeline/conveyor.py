"""The stages of one rank under torch's schedules.

Torch asks for a fixed number of micro-batches of one shape. The shapes are measured with the first
micro-batch and again whenever they change; a step with fewer micro-batches lets the rest pass by
empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from drumline.config import PipelineConfig
from drumline.distributed.strategies.pipeline.passes import LOSS, Activation, Passes, StagePass
from drumline.errors import BadInput

T = TypeVar("T")
_SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
}
_OF_SEVERAL = ("interleaved_1f1b", "zero_bubble")


def rounded(passes: int, ranks: int, schedule: str) -> int:
    """The least number of micro-batches, not below `passes`, that a schedule takes."""
    if schedule == "1f1b":
        return max(passes, ranks)
    if schedule in _OF_SEVERAL:  # in rounds of about as many as there are ranks
        while passes % max(1, passes // ranks):
            passes += 1
    return passes


@dataclass(frozen=True)
class Along:
    """This rank's place in its pipeline, and how to talk along it.

    Attributes:
        rank: Its place among `size`.
        group: Its ranks, in order.
        device: Of the data plane.
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None
    device: torch.device

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Overwrite a tensor with that of the rank at a place."""
        there = tensor.to(self.device).contiguous()
        dist.broadcast(there, group=self.group, group_src=source)
        if self.rank != source:
            tensor.copy_(there)

    def tell(self, value: T, source: int) -> T:
        """A small value of the rank at a place."""
        holder = [value]
        dist.broadcast_object_list(holder, group=self.group, group_src=source, device=self.device)
        return holder[0]


class Conveyor(nn.Module):
    """This rank's stages, run for the micro-batches of one step at a time.

    Args:
        stages: This rank's, by number.
        along: Its pipeline.
        options: The schedule.
        still: Within it a pass changes no buffer.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        along: Along,
        options: PipelineConfig,
        still: Callable[[], Any],
    ) -> None:
        super().__init__()
        self.along, self.options, self._still = along, options, still
        self.count = along.size * options.stages
        held = list(stages.values())
        self.passes = {
            number: StagePass(stage, number, self.count, held, along.device)
            for number, stage in stages.items()
        }
        for stage in self.passes.values():
            stage.split_backward = options.schedule == "zero_bubble"
        self._schedule: Any = None
        self._made_for: tuple[Any, int, int] = (None, 0, 0)
        self._specs: list[tuple[str, torch.Size, torch.dtype]] | None = None

    def forward(self, *_: Any, **__: Any) -> Any:
        """Never called: a pipeline is run.

        Raises:
            BadInput: Always.
        """
        raise BadInput(
            "A model in pipeline stages cannot be called.",
            remedy="Leave the step to the Trainer, or set distributed.mesh.pipeline=1.",
        )

    def run(self, passes: Passes) -> None:
        """Forward and backward of all micro-batches; gradients are added to the parameters'.

        Args:
            passes: At least one; equal on all ranks of the pipeline, which run together.
        """
        for stage in self.passes.values():
            stage.passes = passes
        layout, number, samples = self._made_for
        if layout != passes.layout or number < len(passes.sizes) or samples < max(passes.sizes):
            self._make(passes)
        numbers = torch.arange(self._made_for[1])
        try:
            self._schedule.step(target=numbers, return_outputs=False, number=numbers)
        except RuntimeError as error:  # torch hides what a stage raised behind one of its own
            raise error.__cause__ or error from None

    def shared(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the last stage gives, on all ranks of the pipeline.

        Args:
            tensors: By name, of the same shapes in every step; what other ranks give is left.
        """
        last = self.along.size - 1
        spec = [(name, value.shape, value.dtype) for name, value in sorted(tensors.items())]
        if self._specs is None:
            self._specs = self.along.tell(spec, last)
        elif self.along.rank == last and spec != self._specs:
            raise BadInput(
                "With mesh.pipeline the sums of a task must have the same names, shapes and dtypes "
                f"in every step; there were {self._specs}, and now there are {spec}.",
            )
        found: dict[str, Tensor] = {}
        for dtype in sorted({dtype for _, _, dtype in self._specs}, key=str):
            mine = [(name, shape) for name, shape, kind in self._specs if kind == dtype]
            sizes = [shape.numel() for _, shape in mine]
            flat = torch.empty(sum(sizes), dtype=dtype, device=self.along.device)
            if self.along.rank == last:
                torch.cat([tensors[name].detach().to(flat).flatten() for name, _ in mine], out=flat)
            self.along.broadcast(flat, last)
            parts = zip(mine, torch.split(flat, sizes), strict=True)
            found |= {name: part.view(shape) for (name, shape), part in parts}
        return found

    def _make(self, passes: Passes) -> None:
        """A schedule for what is to come, of the shapes that its first micro-batch has."""
        samples = max(passes.sizes)
        number = rounded(len(passes.sizes), self.along.size, self.options.schedule)
        given = self._measured()
        made = []
        for stage in self.passes.values():
            received = given[stage.number - 1] if stage.number else ()
            inputs = [each.example(samples) for each in received]
            stage.gives, stage.samples = tuple(given[stage.number]), samples
            outputs = [each.example(samples) for each in stage.gives]
            made.append(
                PipelineStage(
                    stage,
                    stage.number,
                    self.count,
                    self.along.device,
                    input_args=tuple(inputs or [torch.empty(1, dtype=torch.int64, device="meta")]),
                    output_args=_LOSSES if stage.is_last else tuple(outputs),
                    group=self.along.group,
                )
            )
        kind = _SCHEDULES[self.options.schedule]
        several = self.options.schedule in _OF_SEVERAL
        self._schedule = kind(
            made if several else made[0], number, loss_fn=_is_the_loss, scale_grads=False
        )
        self._made_for = (passes.layout, number, samples)

    def _measured(self) -> list[list[Activation]]:
        """What every stage gives, found stage after stage."""
        given: list[list[Activation]] = []
        with self._still():
            for number in range(self.count):
                stage = self.passes.get(number)
                received = given[-1] if given else []
                found = [] if stage is None else stage.measure(received)
                given.append(self.along.tell(found, number % self.along.size))
        return given


_LOSSES = (torch.empty((), dtype=LOSS, device="meta", requires_grad=True),)


def _is_the_loss(output: Tensor, _: Any) -> Tensor:
    """The last stage gives it already."""
    return output
