"""Which performance switches help a model here: tried on real steps, kept where they do.

python examples/performance.py
drumline run examples/performance.py --gpus cpu:2
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import drumline
from drumline.training.performance import optimize

points = torch.linspace(-3, 3, 4096).unsqueeze(1)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    inputs, targets = batch
    return (model(inputs) - targets).square().squeeze(1)  # one a sample, not their mean


with drumline.open_world() as world:
    torch.manual_seed(0)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())]
    model = nn.Sequential(nn.Linear(1, 64), *hidden, nn.Linear(64, 1)).to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(points, points.sin()), batch_size=256, shuffle=True)
    report = optimize(model, loader, optimizer, loss, world=world)
    if world.is_main:
        print(report)
    model, optimizer, loader = world.prepare(model, optimizer, loader)
    for _ in range(20):
        for batch in loader:
            losses = loss(model, batch)
            world.backward(losses)
            world.step(optimizer)
    means = world.reduce({"loss": losses.mean()}, count=len(losses))
    if world.is_main:
        print(f"trained on {world.size} ranks: loss {means['loss']:.1e}")
