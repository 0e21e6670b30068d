"""One rank of every case in test_own_loop: trains, and writes what it saw as JSON.

python own_loop_cases.py OUT SAVED: results go to OUT/rank-N.json; the checkpoint SAVED is written
by a world of three ranks, and loaded by others.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import drumline
from drumline.errors import DataError

SAMPLES = 22


def samples(count: int = SAMPLES) -> TensorDataset:
    """Inputs, targets and the number of each sample."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, generator=draw, dtype=torch.float64)
    return TensorDataset(inputs, inputs.sin().sum(1), torch.arange(count))


def build() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def losses(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]).squeeze(1) - batch[1]) ** 2


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.05)


def weights(model: nn.Module) -> list[float]:
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


def train(world: drumline.OwnLoop, loader: Any, epochs: int = 3) -> dict[str, Any]:
    """Loop over a loader; the samples of each step that this rank counted, and the result."""
    model = build()
    wrapped, optimizer, loader = world.prepare(model, adam(model), loader)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    seen: list[list[list[int]]] = []
    means = []
    for _ in range(epochs):
        seen.append([])
        for batch in loader:
            each = losses(wrapped, batch)
            world.backward(each.sum(), count=len(batch[0]))
            assert world.step(optimizer, clip_norm=0.5)
            seen[-1].append(batch[2][: world.count].tolist())
            means.append(world.reduce({"loss": each.mean()}, count=len(batch[0]))["loss"])
        schedule.step()
    return {"seen": seen, "means": means, "weights": weights(model)}


def accumulated(world: drumline.OwnLoop) -> dict[str, Any]:
    """Steps of three micro-batches: 3 + 3 + 3, then 3 + 3 + 1 samples."""
    model = build()
    wrapped, optimizer, loader = world.prepare(model, adam(model), DataLoader(samples(16), 3))
    for number, batch in enumerate(loader):
        with world.accumulate((number + 1) % 3 != 0):
            world.backward(losses(wrapped, batch))
        if (number + 1) % 3 == 0:
            world.step(optimizer)
    return {"weights": weights(model)}


class Shuffled(IterableDataset[Any]):
    """A stream in an order of its own draws, divided among workers as torch's handbook does."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        assert worker is None or worker.dataset is self
        numbers = list(range(first, self.count, workers))
        random.shuffle(numbers)
        data = samples(self.count)
        return iter([data[number] for number in numbers])


class ByRank(IterableDataset[Any]):
    """A stream that already gives every rank another part."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        return iter([samples()[number] for number in range(self.rank, SAMPLES, 4)])


def refused(world: drumline.OwnLoop) -> str:
    try:
        for _ in world.prepare(DataLoader(ByRank(world.rank), batch_size=4)):
            pass
    except DataError as error:
        return error.message
    return ""


def own_part(world: drumline.OwnLoop) -> dict[str, Any]:
    """Rank r has r batches of two samples: rank 0 has none at all, unless it is alone."""
    count = 2 * (world.rank if world.size > 1 else 1)
    data = samples()
    own = [data[(8 * world.rank + number) % SAMPLES] for number in range(count)]
    model = build()
    wrapped, optimizer = world.prepare(model, adam(model))
    loader = world.prepare(DataLoader(own, batch_size=2), own_part=True)
    seen = []
    for batch in loader:
        world.backward(losses(wrapped, batch))
        world.step(optimizer)
        seen.append(batch[2][: world.count].tolist())
    return {"seen": [seen], "weights": weights(model)}


def skipped(world: drumline.OwnLoop) -> dict[str, Any]:
    """The second step has an infinite loss on the last rank only."""
    model = build()
    wrapped, optimizer, loader = world.prepare(model, adam(model), DataLoader(samples(12), 4))
    taken = []
    for number, batch in enumerate(loader):
        each = losses(wrapped, batch)
        if number == 1 and world.rank == world.size - 1:
            each = each * torch.tensor(float("inf"))
        world.backward(each)
        taken.append(world.step(optimizer))
    return {"taken": taken, "weights": weights(model)}


def resumed(world: drumline.OwnLoop, path: Path) -> dict[str, Any]:
    """Two epochs of five batches; three ranks save after seven, others begin there."""
    model = build()
    torch.manual_seed(world.rank)
    wrapped, optimizer, loader = world.prepare(
        model, adam(model), DataLoader(samples(), 5, shuffle=True)
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    values = {} if world.size == 3 else world.load(path, schedule=schedule)
    seen = []
    for _ in range(loader.epoch, 2):
        for batch in loader:
            world.backward(losses(wrapped, batch))
            world.step(optimizer)
            schedule.step()
            seen.append(batch[2][: world.count].tolist())
            if world.size == 3 and len(seen) == 7:
                world.save(path, schedule=schedule, best=0.5, name="seven")
    return {"seen": [seen], "weights": weights(model), "values": values}


def main(out: Path, saved: Path) -> None:
    with drumline.open_world(drumline.RunConfig(epochs=1, seed=7, devices="cpu")) as world:
        torch.manual_seed(100 + world.rank)  # nothing may depend on the ranks' own generators
        random.seed(world.rank)
        draws = WeightedRandomSampler(torch.arange(1.0, SAMPLES + 1), 13)
        lists = [[3, 1, 4], [5], [9, 2, 6, 8, 7]]
        results = {
            "size": world.size,
            "kind": world.environment.kind,
            "resumed": resumed(world, saved),  # first, as a checkpoint has all that was prepared
            "shuffled": train(world, DataLoader(samples(), 5, shuffle=True)),
            "sequential": train(world, DataLoader(samples(), 5, drop_last=True), epochs=1),
            "ten": train(world, DataLoader(samples(10), 10, shuffle=True), epochs=2),
            "pairs": train(world, DataLoader(samples(5), 2, num_workers=1)),
            "drawn": train(world, DataLoader(samples(), 4, sampler=draws), epochs=2),
            "lists": train(world, DataLoader(samples(), batch_sampler=lists), epochs=1),
            "stream": train(world, DataLoader(Shuffled(11), 4), epochs=2),
            "worked": train(world, DataLoader(Shuffled(11), 4, num_workers=2), epochs=2),
            "accumulated": accumulated(world),
            "refused": refused(world),
            "own_part": own_part(world),
            "skipped": skipped(world),
            "stats": world.device_stats()[0].__dict__,
            "means": world.reduce({"rank": world.rank, f"r{world.rank}": 1.0}, count=world.rank),
        }
    out.mkdir(parents=True, exist_ok=True)
    (out / f"rank-{world.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
