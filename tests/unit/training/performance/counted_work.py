"""A model whose steps cost what they are told to, and a clock that counts that instead of time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from drumline.training.performance import Rules, Subject, Switch

SAMPLES, BATCH = 48, 8


class Clock:
    """Units of work done so far; one unit is one second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Repeating(nn.Module):
    """Computes the same thing `rounds` times over; each costs one unit."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.rounds = clock, 4
        self.inner = nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 1)
        )
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.clock.now += self.rounds
        return self.inner(x) * self.scale


class Rounds(Switch):
    """Another number of rounds: more or less work for the same result."""

    def __init__(self, name: str, rounds: float) -> None:
        self.name, self.rounds, self.before = name, rounds, 0.0

    def apply(self, subject: Subject) -> None:
        self.before = subject.model.rounds
        subject.model.rounds = self.rounds

    def undo(self, subject: Subject) -> None:
        subject.model.rounds = self.before


class Cheating(Rounds):
    """Less work, and another result."""

    def __init__(self, factor: float) -> None:
        super().__init__("cheating", 1)
        self.factor = factor

    def apply(self, subject: Subject) -> None:
        super().apply(subject)
        subject.model.scale = self.factor

    def undo(self, subject: Subject) -> None:
        super().undo(subject)
        subject.model.scale = 1.0


class Failing(Rounds):
    """Raises at once, or in the forward once it is on."""

    def __init__(self, name: str, when: str) -> None:
        super().__init__(name, 1)
        self.when = when

    def apply(self, subject: Subject) -> None:
        super().apply(subject)
        if self.when == "apply":
            raise RuntimeError("no compiler here\nand more lines")
        subject.model.scale = torch.ones(5, 1)  # of a shape that does not fit

    def undo(self, subject: Subject) -> None:
        super().undo(subject)
        subject.model.scale = 1.0


class Refusing(Rounds):
    """Does not apply."""

    def why_not(self, subject: Subject) -> str:
        return "not here"


def rules(clock: Clock) -> Rules:
    return Rules(clock=clock)


def loader(**options: object) -> DataLoader[tuple[Tensor, ...]]:
    draw = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 3, generator=draw)
    data = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True), torch.arange(SAMPLES))
    return DataLoader(data, BATCH, **{"shuffle": True, **options})  # type: ignore[arg-type]


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    inputs, targets, _ = batch
    return (model(inputs) - targets).square().squeeze(1)
