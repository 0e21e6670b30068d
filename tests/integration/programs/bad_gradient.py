"""A number that is not finite gets into the gradient of one rank at one step.

Options, as JSON in the first argument: `config` (keys of the RunConfig), `value` ("inf" or
"nan"), `rank` and `call` (of the loss function, from 0). Each rank writes `rank-<rank>.json`: its
loss scale and good steps at the end, and a digest of its weights.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer
from drumline.config import ClusterEnvironment
from drumline.training.own_model import OwnModelTask
from drumline.training.step import Step, StepParts


class Watched(OwnModelTask):
    """The task, and what its step works with."""

    parts: StepParts

    def build_step(self, parts: StepParts) -> Step | None:
        """Keep the parts; the step is the standard one."""
        self.parts = parts
        return None


def main(options: dict[str, Any]) -> None:
    """Train, with the fault on one rank."""
    rank = ClusterEnvironment.detect().rank
    random = torch.Generator().manual_seed(3)
    inputs = torch.randn(240, 8, generator=random)
    targets = torch.randn(240, 4, generator=random) * 0.1
    calls = 0

    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        model[2].weight.register_hook(spoil)
        return model

    def spoil(gradient: Tensor) -> Tensor:
        if rank != options["rank"] or calls - 1 != options["call"]:
            return gradient
        spoiled = gradient.clone()
        spoiled[1, 2] = float(options["value"])
        return spoiled

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        difference: Tensor = model(batch[0]) - batch[1]
        return difference.float().square().mean(dim=1)

    task = Watched(build, TensorDataset(inputs, targets), loss)
    Trainer(RunConfig(**options["config"]), task).fit()
    weights = b"".join(p.detach().numpy().tobytes() for p in task.parts.model.parameters())
    found = {
        "scaler": task.parts.scaler.state_dict(),
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    Path(f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
