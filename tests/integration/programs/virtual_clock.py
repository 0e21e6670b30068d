"""A clock that goes on by the work that is done, and by waiting for ranks that have more to do.

Speeds then are what a test says, on a busy machine too. Wherever ranks wait for each other, each
clock goes on to that of the last: whoever measures waiting measures all ranks alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from drumline.distributed import ControlPlane, Strategy
from drumline.training import Losses
from drumline.training.own_model import OwnModelTask


@dataclass
class VirtualClock:
    """Seconds of one rank.

    Attributes:
        sample_s: What a sample's forward and backward take; two values are of before and after
            step `turn`.
        reading_s: What reading a sample takes.
    """

    sample_s: list[float]
    reading_s: float = 0.0
    turn: int = 0
    now: float = 0.0
    steps: int = 0
    forwards: list[int] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within it, this is the time of the process and its processor."""
        told = {"perf_counter": lambda: self.now, "thread_time": lambda: self.now}
        with patch.multiple(time, **told):
            yield

    @contextmanager
    def waiting(self, control: ControlPlane, strategy: Strategy) -> Iterator[None]:
        """Within it, votes, barriers and sums over ranks take until the last has come."""

        def waits(method: Any) -> Any:
            def wrapped(*arguments: Any) -> Any:
                found = method(*arguments)
                self.now = max(control.gather(self.now))
                return found

            return wrapped

        votes = {"any": waits(control.any), "barrier": waits(control.barrier)}
        sums = {"reduce_gradients": waits(strategy.reduce_gradients)}
        with patch.multiple(control, **votes), patch.multiple(strategy, **sums):
            yield

    def compute(self, samples: int) -> None:
        """A micro-batch is worked on."""
        self.forwards.append(samples)
        self.now += samples * self.sample_s[-1 if self.steps >= self.turn else 0]

    def read(self) -> None:
        """A sample is read."""
        self.now += self.reading_s


class ClockedData:
    """A data set whose samples take time to read."""

    def __init__(self, data: Any, clock: VirtualClock) -> None:
        self.data, self.clock = data, clock

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        self.clock.read()
        return self.data[index]


class ClockedTask(OwnModelTask):
    """A user's model whose work moves the clock."""

    def __init__(self, model: Any, data: Any, loss: Any, clock: VirtualClock) -> None:
        super().__init__(model, ClockedData(data, clock), loss)
        self.clock = clock

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        self.clock.compute(len(batch[0]))
        return super().loss(model, batch)

    def after_step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sums: Mapping[str, Tensor],
        count: int,
    ) -> None:
        self.clock.steps += 1
