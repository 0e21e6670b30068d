"""The gradient of one step with shares 9 and 3, beside that of one process and of plain DDP.

Rank 0 writes `gradients.json`: the relative distance of either from the gradient that one process
computes over all 12 samples.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer
from drumline.training import SampleOrder

SHARES = (9, 3)
SAMPLES = sum(SHARES)
RATE = 1e-3


def build() -> nn.Module:
    """The model; every call gives the same weights."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Squared error of each sample."""
    inputs, targets = batch
    difference: Tensor = model(inputs) - targets
    return difference.square().flatten()


def flat_gradient(model: nn.Module) -> Tensor:
    """All gradients in one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def flat_weights(model: nn.Module) -> Tensor:
    """All weights in one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main() -> None:
    """One step of plain SGD, whose change of the weights is the gradient."""
    random = torch.Generator().manual_seed(2)
    inputs = torch.randn(SAMPLES, 6, generator=random, dtype=torch.float64)
    targets = 3 * torch.randn(SAMPLES, 1, generator=random, dtype=torch.float64)
    config = RunConfig(
        name="shares",
        steps=1,
        global_batch=SAMPLES,
        precision="fp64",
        optimizer={"name": "sgd", "lr": RATE},
        distributed={"shares": list(SHARES)},
    )
    order = SampleOrder(SAMPLES, config.seed).samples(0, 0, SAMPLES)

    @torch.enable_grad()
    def compare(trained: nn.Module) -> dict[str, float]:
        rank = dist.get_rank()
        one = build()
        loss(one, [inputs, targets]).mean().backward()
        wanted = flat_gradient(one)
        ours = (flat_weights(build()) - flat_weights(trained)) / RATE
        share = order[sum(SHARES[:rank]) :][: SHARES[rank]]
        plain = DistributedDataParallel(copy.deepcopy(build()))
        loss(plain, [inputs[share], targets[share]]).mean().backward()
        off = {
            name: float((gradient - wanted).norm() / wanted.norm())
            for name, gradient in (("drumline", ours), ("plain_ddp", flat_gradient(plain)))
        }
        if rank == 0:
            Path("gradients.json").write_text(json.dumps(off))
        return {}

    data = TensorDataset(inputs, targets)
    Trainer(config, model=build, data=data, loss=loss, evaluate=compare).fit()


if __name__ == "__main__":
    main()
