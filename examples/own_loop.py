"""A loop of your own on any number of devices. The same script runs in each of these ways:

python examples/own_loop.py
drumline run examples/own_loop.py --gpus cpu:2
torchrun --nproc-per-node 2 examples/own_loop.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import drumline

points = torch.linspace(-3, 3, 1000).unsqueeze(1)

with drumline.open_world() as world:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.GELU(), nn.Linear(64, 1))
    model, optimizer, loader = world.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-2),
        DataLoader(TensorDataset(points, points.sin()), batch_size=128, shuffle=True),
    )
    for epoch in range(50):
        total = seen = 0.0
        for inputs, targets in loader:  # this rank's part of 128 samples
            losses = (model(inputs) - targets).square().squeeze(1)  # one a sample, not their mean
            world.backward(losses)
            world.step(optimizer, clip_norm=1.0)
            total += losses[: world.count].sum().item()  # without padding
            seen += world.count
        means = world.reduce({"loss": total / max(seen, 1)}, count=seen)
        if world.is_main and epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {means['loss']:.3e} on {world.size} ranks")
    world.save("own_loop")
    if world.is_main:
        print("saved in own_loop/; world.load('own_loop') goes on from there")
