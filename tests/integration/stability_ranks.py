"""What each rank does in test_stability_ranks: several small runs, one after the other.

Called with a folder and a poisoned sample. For each run three ranks are forked, which spares
importing torch anew; each writes what it saw to FOLDER/RUN-rank-N.json.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config import parse_config
from drumline.errors import DrumlineError
from drumline.training import Trainer

SAMPLES, BATCH = 96, 6
INPUTS = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(2))


class Overflowing(nn.Module):
    """Its first layer puts out some 100,000, more than fp16 can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.grow, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        with torch.no_grad():
            self.grow.weight.copy_(2e5 * torch.eye(4)[:, :3])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.grow(x) * 1e-5)


class Run:
    """One run of a small model, and what this rank saw of it."""

    def __init__(self, folder: Path, name: str, build: Callable[[], nn.Module] | None = None):
        self.folder = folder / name
        self.numbers: list[list[int]] = []
        self.weights: list[list[float]] = []
        self._build = build or (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
        self.poison: dict[int, float] = {}
        self.before: Callable[[nn.Module, int], None] = lambda net, step: None

    def fit(self, **keys: Any) -> dict[str, Any]:
        data = [(number, INPUTS[number]) for number in range(SAMPLES)]
        config = parse_config(
            {
                "steps": 12,
                "global_batch": BATCH,
                "run_dir": str(self.folder),
                "logging": {"every_steps": 1},
                **keys,
            }
        )
        error = None
        trainer = Trainer(config, model=self._made, data=data, loss=self._loss)
        try:
            trainer.fit()
        except DrumlineError as raised:
            error = raised.as_dict()
        last = torch.cat([p.detach().flatten() for p in self.model.parameters()]).tolist()
        return {"numbers": self.numbers, "last": last, "error": error}

    def _made(self) -> nn.Module:
        self.model = self._build()
        return self.model

    def _loss(self, net: nn.Module, batch: Any) -> Tensor:
        numbers, inputs = batch
        if net is not self.model:  # not when a step is repeated to find what went wrong
            self.numbers.append(numbers.tolist())
            self.before(self.model, len(self.numbers))
        scale = torch.tensor([self.poison.get(int(n), 1.0) for n in numbers])
        return (net(inputs) - inputs.sum(1, keepdim=True)).square().sum(1) * scale


def flip(step: int, rank: int) -> Callable[[nn.Module, int], None]:
    """Flip one bit of one weight of one rank in the forward of a step."""

    def before(net: nn.Module, now: int) -> None:
        if now == step and rank == int(os.environ["RANK"]):
            with torch.no_grad():
                net[2].weight.view(torch.int32)[0, 1] ^= 1  # type: ignore[index,union-attr]

    return before


def run_of(name: str, folder: Path, poison: int) -> dict[str, Any]:
    """One of the runs, by name, and what this rank saw of it."""
    run = Run(folder, name, Overflowing if name == "widen" else None)
    if name in ("flip", "repair"):
        run.before = flip(4, rank=1)
        policy = {"flip": "stop", "repair": "repair"}[name]
        return run.fit(stability={"fingerprint_every": 3, "replica": policy})
    if name == "widen":
        policies = {"non_finite": "widen_precision"}
        optimizer = {"lr": 0.02}
        return run.fit(stability=policies, precision="fp16", steps=60, optimizer=optimizer)
    run.poison = {poison: math.nan}
    if name == "rollback":
        return run.fit(stability={"non_finite": "rollback"}, checkpoint={"every_steps": 3})
    return run.fit(stability={"non_finite": "lower_lr", "lr_steps": 2})


def rank_of(rank: int, name: str, folder: Path, poison: int, port: int) -> None:
    """One rank, in a process of its own."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    found = run_of(name, folder, poison)
    (folder / f"{name}-rank-{rank}.json").write_text(json.dumps(found))


def main(folder: Path, poison: int) -> int:
    """All runs; the number of ranks that broke."""
    fork = multiprocessing.get_context("fork")
    broken = 0
    for name in ("flip", "repair", "rollback", "lower", "widen"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [
            fork.Process(target=rank_of, args=(rank, name, folder, poison, port))
            for rank in range(3)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(60)
            rank.kill()
            broken += rank.exitcode != 0
    return broken


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
