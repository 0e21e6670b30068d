"""A regression with dropout that notes which samples it saw, and in which things go wrong on
demand.

Options, as JSON in the first argument: `config` (keys of the RunConfig), `again` (keys over those,
for a second fit after the first), `samples`, and faults, each with the `rank` it happens on, the
`call` of the loss function, counted from 0, and the `attempt`, by default the first: `kill` (by
SIGKILL), `terminate` (by SIGTERM or another `signal`), `hang` (never returns).

Each rank appends the ids of every batch, as one JSON list a line, to
`ids/<world size>-<attempt>-<rank>.txt` below the working directory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer
from drumline.config import ClusterEnvironment


class Faults:
    """What goes wrong on this rank, call by call."""

    def __init__(self, options: dict[str, Any], who: ClusterEnvironment) -> None:
        self._at = {
            fault["call"]: (name, fault)
            for name, fault in options.items()
            if name in ("kill", "terminate", "hang")
            and (fault["rank"], fault.get("attempt", 0)) == (who.rank, who.attempt)
        }
        self._call = -1

    def come(self) -> None:
        """What is due at this call."""
        self._call += 1
        match self._at.get(self._call):
            case "kill", _:
                os.kill(os.getpid(), signal.SIGKILL)
            case "terminate", fault:
                os.kill(os.getpid(), signal.Signals[fault.get("signal", "SIGTERM")])
            case "hang", _:
                Path(f"hangs-{os.getpid()}").touch()
                threading.Event().wait()


def samples(count: int) -> TensorDataset:
    """Ids, inputs and targets."""
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 8, generator=random, dtype=torch.float64)
    targets = torch.sin(inputs @ torch.randn(8, 2, generator=random, dtype=torch.float64))
    return TensorDataset(torch.arange(count), inputs, targets)


def build() -> nn.Module:
    """A small network with dropout."""
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 2))


def main(options: dict[str, Any]) -> int:
    """Train; gives the exit code."""
    who = ClusterEnvironment.detect()
    faults = Faults(options, who)
    seen = Path("ids") / f"{who.world_size}-{who.attempt}-{who.rank}.txt"
    seen.parent.mkdir(exist_ok=True)

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        ids, inputs, targets = batch
        faults.come()
        with seen.open("a") as file:
            file.write(json.dumps(ids.tolist()) + "\n")
        weights = next(model.parameters()).dtype
        return F.mse_loss(model(inputs.to(weights)), targets.to(weights), reduction="none").mean(1)

    keys = {"name": "regression", "logging": {"every_steps": 1}, **options["config"]}
    data = samples(options.get("samples", 1000))
    result = Trainer(RunConfig(**keys), model=build, data=data, loss=loss).fit()
    if "again" in options:
        config = RunConfig(**{**keys, **options["again"]})
        result = Trainer(config, model=build, data=data, loss=loss).fit()
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
