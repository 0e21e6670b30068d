"""Evaluating a run that has trained: its task and weights, as they were saved, on one device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from drumline.config import ClusterEnvironment, DistributedConfig, RunConfig
from drumline.config.section import import_object
from drumline.distributed import World, open_world
from drumline.errors import BadInput
from drumline.events import EventLog
from drumline.run_directory import RunDirectory
from drumline.training.checkpoint import Checkpoint, CheckpointStore
from drumline.training.precision import Arithmetic
from drumline.training.task import Setup, Task


@dataclass(frozen=True)
class Evaluation:
    """What a checkpoint is worth, by the task's own metrics."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Opened:
    """A run's task and model with the weights of a checkpoint, on one device."""

    task: Task
    model: nn.Module
    step: int


def evaluate_run(run: RunDirectory, config: RunConfig, which: str = "last") -> Evaluation:
    """Evaluate a checkpoint of a run in this process. Nothing is written.

    Args:
        run: Where its checkpoints are.
        config: The run's config; keys that only concern evaluation may differ.
        which: "last", "best", or the number of a step.

    Raises:
        BadInput: If the run was no task's, or has no such checkpoint.
        CheckpointError: If the checkpoint is damaged, or does not fit the config.
    """
    with open_trained(run, config, which) as opened, torch.no_grad():
        metrics = opened.task.evaluate(opened.model)
        return Evaluation(opened.step, {name: float(value) for name, value in metrics.items()})


@contextmanager
def open_trained(run: RunDirectory, config: RunConfig, which: str = "last") -> Iterator[Opened]:
    """A run's task and model as a checkpoint has them, in this process, in evaluation mode.

    Args:
        run: Where its checkpoints are.
        config: The run's config.
        which: "last", "best", or the number of a step.

    Raises:
        BadInput: If the run was no task's, or has no such checkpoint.
        CheckpointError: If the checkpoint is damaged, or does not fit the config.
    """
    if config.task is None:
        raise BadInput(
            f"{run.path} was trained by a script, which alone knows how to evaluate it.",
            remedy="Name a run of drumline train.",
        )
    config.task.check()
    checkpoint = CheckpointStore(run.checkpoints_path, config.checkpoint).choose(which)
    alone = config.model_copy(update={"distributed": DistributedConfig()})
    with open_world(alone, ClusterEnvironment.detect({})) as world:
        task: Task = import_object(config.task.implementation)()
        yield from _opened(task, alone, world, checkpoint)


def _opened(
    task: Task, config: RunConfig, world: World, checkpoint: Checkpoint
) -> Iterator[Opened]:
    arithmetic = Arithmetic(config.precision, world.device)
    arithmetic.apply()
    task.setup(Setup(config, world, EventLog(Path(os.devnull))))
    source = task.build_source()
    try:
        torch.manual_seed(config.seed)
        model = task.build_model().to(world.device, arithmetic.weights)
        checkpoint.load_weights(model)
        task.load_state_dict(checkpoint.load_state().get("task", {}))
        yield Opened(task, model.eval(), checkpoint.step)
    finally:
        source.close()
