"""A small run whose samples are known by number, for tests of what the watchers do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config import parse_config
from drumline.run_directory import RunDirectory
from drumline.training import Result, SampleOrder, Trainer

SAMPLES, BATCH = 240, 4
INPUTS = torch.randn(SAMPLES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
ORDER = SampleOrder(SAMPLES, 0).samples(0, 0, SAMPLES).tolist()
QUICK = {"window": 50, "warmup_steps": 5, "cooldown_steps": 0}


def numbers_of_step(step: int) -> list[int]:
    """The samples of step `step`, counted from 1."""
    return ORDER[(step - 1) * BATCH : step * BATCH]


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@dataclass
class Seen:
    """What the loss function saw at each call, and what the run wrote."""

    numbers: list[list[int]] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    result: Result | None = None

    def changes(self) -> list[float]:
        """How far each step moved the weights."""
        pairs = zip(self.weights, self.weights[1:], strict=False)
        return [(after - before).norm().item() for before, after in pairs]

    def of(self, kind: str, **values: Any) -> list[dict[str, Any]]:
        """Events of a kind with these values."""
        found = [event for event in self.events if event["kind"] == kind]
        return [e for e in found if all(e.get(key) == value for key, value in values.items())]


def watched(
    folder: Path,
    poison: dict[int, float] | None = None,
    *,
    model: Callable[[], nn.Module] = build,
    during: Callable[[int], None] | None = None,
    stability: dict[str, Any] | None = None,
    seen: Seen | None = None,
    **keys: Any,
) -> Seen:
    """Train; the loss of the samples in `poison` is multiplied by their factor.

    Every micro-batch is a whole step here, so calls of the loss are steps, plus repeated ones.
    """
    seen = seen or Seen()
    factors = poison or {}
    data = [(number, INPUTS[number]) for number in range(SAMPLES)]

    def loss(net: nn.Module, batch: Any) -> Tensor:
        numbers, inputs = batch
        if during is not None:
            during(len(seen.numbers) + 1)
        seen.numbers.append(numbers.tolist())
        flat = torch.cat([p.detach().flatten().double() for p in net.parameters()])
        seen.weights.append(flat)
        scale = torch.tensor([factors.get(int(n), 1.0) for n in numbers], dtype=torch.float64)
        target = inputs.sum(1, keepdim=True)
        losses = ((net(inputs.to(next(net.parameters()))) - target) ** 2).sum(1) * scale
        seen.losses.append(losses.mean().item())
        return losses

    config = parse_config(
        {
            "steps": 20,
            "global_batch": BATCH,
            "precision": "fp64",
            "run_dir": str(folder / "run"),
            "optimizer": {"name": "sgd", "lr": 0.01},
            "logging": {"every_steps": 1},
            "stability": {**QUICK, **(stability or {})},
            **keys,
        }
    )
    try:
        seen.result = Trainer(config, model=model, data=data, loss=loss).fit()
    finally:
        seen.events = RunDirectory(folder / "run").events()
    return seen
