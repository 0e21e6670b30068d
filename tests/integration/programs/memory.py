"""A forward that needs much memory for each sample, on a machine where one rank has little.

Options, as JSON in the first argument: `config` (keys of the RunConfig), and either `limit` with a
`rank` whose address space is held to what it has plus 1 GiB, or `fail` with a `rank`, a `call` of
the loss function from 0 and a number of samples `above` which it raises out of memory; with
`replicas` only where the rank holds a whole replica.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer
from drumline.config import ClusterEnvironment

FOR_A_SAMPLE_BYTES = 200 * 2**20
SPARE_BYTES = 2**30


def main(options: dict[str, Any]) -> None:
    """Train."""
    rank = ClusterEnvironment.detect().rank
    random = torch.Generator().manual_seed(4)
    inputs = torch.randn(480, 6, generator=random, dtype=torch.float64)
    targets = torch.randn(480, 3, generator=random, dtype=torch.float64)
    limited, failing = options.get("limit"), options.get("fail")
    calls = 0

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        nonlocal calls
        if calls == 0 and limited and limited["rank"] == rank:
            bound = psutil.Process().memory_info().vms + SPARE_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
        size = len(batch[0])
        due = failing and failing["rank"] == rank and calls >= failing["call"]
        if due and failing.get("replicas"):
            due = not isinstance(model, FSDPModule)
        if due and size > failing["above"]:
            raise torch.OutOfMemoryError(f"no memory for {size} samples")
        calls += 1
        scratch = torch.empty(size * FOR_A_SAMPLE_BYTES, dtype=torch.uint8)  # never touched
        losses = F.mse_loss(model(batch[0]), batch[1], reduction="none").mean(dim=1)
        del scratch
        return losses

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))

    config = RunConfig(**{"name": "memory", "logging": {"every_steps": 1}, **options["config"]})
    Trainer(config, model=build, data=TensorDataset(inputs, targets), loss=loss).fit()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
