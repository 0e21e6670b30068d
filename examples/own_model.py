"""A model of your own on any number of devices. The same script runs in each of these ways:

python examples/own_model.py
drumline run examples/own_model.py --gpus cpu:2
torchrun --nproc-per-node 2 examples/own_model.py
"""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import DistributedConfig, RunConfig, Trainer

points = torch.linspace(-3, 3, 4096).unsqueeze(1)
data = TensorDataset(points, points.sin())


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 64), nn.GELU(), nn.Linear(64, 1))


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    inputs, targets = batch
    return (model(inputs) - targets).square().squeeze(1)  # one loss a sample, not their mean


def evaluate(model: nn.Module) -> dict[str, float]:
    device = next(model.parameters()).device
    return {"worst_error": float((model(points.to(device)) - points.sin().to(device)).abs().max())}


config = RunConfig(
    name="sine",
    epochs=20,
    global_batch=256,
    optimizer={"lr": 3e-2},
    schedule={"name": "cosine"},
    distributed=DistributedConfig(timeout_s=120),
)
result = Trainer(config, model=build, data=data, loss=loss, evaluate=evaluate).fit()
print(f"{result.message}: worst error {result.metrics.get('worst_error')}, in {result.run_dir}")
sys.exit(result.exit_code)
