"""One process's world, and the parts of a step in it, for tests of the training floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config import ClusterEnvironment, DistributedConfig, Precision, RunConfig
from drumline.distributed import LocalControl, SingleDevice, World
from drumline.events import EventLog
from drumline.training import Cursor, Losses, MapSource, SampleOrder, Setup, Source, StepBatch, Task
from drumline.training.precision import Arithmetic, LossScaler
from drumline.training.step import StandardStep, StepParts

PerSample = Callable[[nn.Module, Any], Tensor]


def world() -> World:
    """A world of one process on the CPU."""
    alone = ClusterEnvironment("alone", 0, 1, 0, 1, "127.0.0.1", 0)
    cpu = torch.device("cpu")
    return World(0, 1, 0, cpu, "none", LocalControl(), DistributedConfig(), alone)


class RecordingTask(Task):
    """A task on given data, that notes what it is told."""

    def __init__(self, model: nn.Module, data: Tensor, per_sample: PerSample) -> None:
        self.model, self.data, self.per_sample = model, data, per_sample
        self.sizes: list[int] = []
        self.steps: list[tuple[dict[str, Tensor], int]] = []
        self.before_clip: Callable[[nn.Module], None] | None = None

    def build_model(self) -> nn.Module:
        return self.model

    def build_source(self) -> Source:
        order = SampleOrder(len(self.data), 0, shuffle=False)
        return MapSource(self.data, order)  # type: ignore[arg-type]

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        losses = self.per_sample(model, batch)
        self.sizes.append(len(losses))
        seen = torch.tensor([len(losses), 1])
        return Losses(losses.sum(), {"squares": (losses.detach() ** 2).sum()}, {"seen": seen})

    def after_gradients(self, model: nn.Module) -> None:
        if self.before_clip is not None:
            self.before_clip(model)

    def after_step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sums: Mapping[str, Tensor],
        count: int,
    ) -> None:
        self.steps.append((dict(sums), count))


def parts_of(
    task: RecordingTask,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    *,
    micro_batch: int = 100,
    clip_norm: float | None = None,
    precision: Precision = Precision.FP64,
    scaler: LossScaler | None = None,
) -> StepParts:
    """What a `StandardStep` works with, in a world of one process."""
    here = world()
    events = EventLog(folder / "events.jsonl", rank=0)
    task.setup(Setup(RunConfig(steps=1), here, events))
    arithmetic = Arithmetic(precision, here.device)
    strategy = SingleDevice()
    return StepParts(
        task=task,
        model=task.model,
        wrapped=strategy.wrap(task.model),
        optimizer=optimizer,
        strategy=strategy,
        world=here,
        arithmetic=arithmetic,
        scaler=scaler or arithmetic.scaler(),
        events=events,
        seed=3,
        micro_batch=micro_batch,
        clip_norm=clip_norm,
    )


def step_of(*arguments: Any, **options: Any) -> StandardStep:
    """The standard step on `parts_of` the same arguments."""
    return StandardStep(parts_of(*arguments, **options))


def batch_of(data: Any, count: int) -> StepBatch:
    """A whole step's batch for the one rank."""
    return StepBatch(data, count, count, (count,), 0, Cursor(0, count), 0)
