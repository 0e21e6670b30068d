"""A model whose checkpoint is 1.2 MB, trained for a few steps.

Options, as JSON in the first argument: `config` (keys of the RunConfig).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer


def main(options: dict[str, Any]) -> None:
    """Train: 100,000 weights in float32, and Adam's two moments of each."""
    inputs = torch.randn(64, 250, generator=torch.Generator().manual_seed(6))

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        difference: Tensor = model(batch[0]) - batch[0]
        return difference.square().mean(dim=1)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(250, 200), nn.Linear(200, 250))

    config = RunConfig(**{"name": "large", "logging": {"every_steps": 1}, **options["config"]})
    Trainer(config, model=build, data=TensorDataset(inputs), loss=loss).fit()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
