"""What each of two ranks does in test_performance_ranks. Called with a folder.

The ranks are forked, which spares importing torch anew. Each writes what it saw to
FOLDER/rank-N.json.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import drumline
from drumline.config import parse_config
from drumline.training import Trainer
from drumline.training.performance import Rules, Subject, Switch, in_trainer, optimize

RANKS = 2
DRAW = torch.Generator().manual_seed(3)
IMAGES = torch.randn(48, 3, 6, 6, generator=DRAW, dtype=torch.float64)
DATA = TensorDataset(IMAGES, IMAGES.mean((1, 2, 3)))


class Clock:
    """Counts work instead of time."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Network(nn.Module):
    """Its forward costs `cost` units of a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
        )
        self.head, self.clock, self.cost, self.factor = nn.Linear(4, 1), Clock(), 8.0, 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.clock.now += self.cost
        return self.head(self.body(x).mean((2, 3))).squeeze(1) * self.factor


class Costing(Switch):
    """Sets each rank's cost, and what its results are multiplied by."""

    def __init__(self, name: str, costs: Sequence[float], factors: Sequence[float] = (1, 1)):
        self.name, self.costs, self.factors = name, costs, factors
        self.before = 8.0

    def apply(self, subject: Subject) -> None:
        rank = dist.get_rank()
        self.before = subject.model.cost
        subject.model.cost, subject.model.factor = self.costs[rank], self.factors[rank]
        if self.costs[rank] < 0:
            raise RuntimeError("no compiler on this rank")

    def undo(self, subject: Subject) -> None:
        subject.model.cost, subject.model.factor = self.before, 1.0


class OwnGroup(Switch):
    """Gradients are summed in another group, as NCCL's settings do."""

    name = "compile"  # a name that the config knows

    def __init__(self) -> None:
        self.before: Any = None
        self.sums = 0

    def apply(self, subject: Subject) -> None:
        assert subject.gradient_group is not None
        self.before, subject.gradient_group.group = (
            subject.gradient_group.group,
            dist.new_group(backend="gloo"),
        )

    def undo(self, subject: Subject) -> None:
        assert subject.gradient_group is not None
        subject.gradient_group.group = self.before


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square()


def together() -> dict[str, Any]:
    """`optimize` on two ranks, before and after `prepare`."""
    found: dict[str, Any] = {}
    with drumline.open_world() as world:
        torch.manual_seed(1)
        model = Network().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(DATA, 8, shuffle=True)
        switches = [
            Costing("one_gains", (4, 12)),
            Costing("one_fails", (4, -1)),
            Costing("one_cheats", (4, 4), (1, 1.1)),
            Costing("both_gain", (2, 6)),
        ]
        report = optimize(
            model, loader, optimizer, loss,
            world=world, switches=switches, rules=Rules(clock=model.clock),
        )  # fmt: skip
        found["before"] = report.as_dict()
        found["cost"] = model.cost
        wrapped, optimizer, _ = world.prepare(model, optimizer, loader)
        report = optimize(
            wrapped, None, optimizer, loss, batches=[next(iter(loader))],
            world=world, switches=[Costing("again", (1, 3))], rules=Rules(clock=model.clock),
        )  # fmt: skip
        found["after"] = report.as_dict()
    return found


def fit(folder: Path, name: str, **performance: Any) -> dict[str, Any]:
    config = parse_config(
        {
            "steps": 6,
            "global_batch": 10,
            "precision": "fp64",
            "distributed": {"mode": "distributed"},
            "run_dir": str(folder / name),
            "logging": {"every_steps": 1},
            "performance": performance,
        }
    )
    made: list[nn.Module] = []

    def build() -> nn.Module:
        made.append(Network())
        return made[-1]

    Trainer(config, model=build, data=DATA, loss=loss).fit()
    weight = made[-1].get_parameter("body.0.weight")
    return {
        "weights": torch.cat([p.detach().flatten() for p in made[-1].parameters()]).tolist(),
        "channels_last": weight.is_contiguous(memory_format=torch.channels_last),
    }


def rank_of(rank: int, folder: Path, port: int) -> None:
    """One rank, in a process of its own."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    found: dict[str, Any] = {"together": together()}
    found["plain"] = fit(folder, "plain")
    found["layout"] = fit(folder, "layout", channels_last=True)
    in_trainer._switches = lambda session: [OwnGroup()]
    found["group"] = fit(folder, "group", compile=True)
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


def main(folder: Path) -> int:
    """Both ranks; the number that broke."""
    fork = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [fork.Process(target=rank_of, args=(rank, folder, port)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
        rank.kill()
    return sum(rank.exitcode != 0 for rank in ranks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(Path(sys.argv[1])))
