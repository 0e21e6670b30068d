"""Stand-ins that the SAE tests share: a world of one, and activations in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from drumline.tasks.sae.config import SAETaskConfig
from drumline.tasks.sae.data import Rows
from drumline.tasks.sae.task import SAETask

CPU = torch.device("cpu")
SEED = 3


@dataclass
class LoneWorld:
    """One rank alone; with a larger `size` it gives its own part, which a test adds up."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        return tensor


class MemoryRows:
    """Activations held in memory."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.width = rows.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, numbers: Sequence[int]) -> Tensor:
        return self.rows[list(numbers)]


def task_config(**keys: Any) -> SAETaskConfig:
    return SAETaskConfig.model_validate({"activations": Path("memory"), **keys})


def rows_of(inputs: Tensor, targets: Tensor | None = None, **keys: Any) -> Rows:
    return rows_under(task_config(**keys), inputs, targets)


def rows_under(config: SAETaskConfig, inputs: Tensor, targets: Tensor | None = None) -> Rows:
    return Rows(MemoryRows(inputs), None if targets is None else MemoryRows(targets), config)


def make_task(inputs: Tensor, targets: Tensor | None = None, **keys: Any) -> SAETask:
    """A task that is set up on rows in memory."""
    if targets is not None:
        keys["targets"] = "targets"
    task = SAETask(lambda config: rows_under(config, inputs, targets))
    run = SimpleNamespace(task=task_config(**keys), seed=SEED, epoch_end="short")
    task.setup(SimpleNamespace(config=run, world=LoneWorld(), events=None))
    return task
