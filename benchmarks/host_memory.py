"""Training on the CPU with the memory that a step frees kept for the next, and without: samples a
second and the most memory held, both sides of each case in turns, as CSV.

    python benchmarks/host_memory.py

`given_back` is what glibc does by itself. Each side is a process of its own; its first third is
left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline import RunConfig, Trainer
from drumline.config import parse_config
from drumline.events import read_events

SIDES = {"kept": {}, "given_back": {"GLIBC_TUNABLES": ""}}
COLUMNS = "case,threads,torch,cpu,kept_per_s,given_back_per_s,ratio,kept_gib,given_back_gib"
PPO_STEPS, PPO_ENVIRONMENTS, PPO_ROLLOUTS = 128, 512, 6


def ppo(folder: Path, precision: str) -> dict[str, Any]:
    """CLSTM-PPO as its peers are measured, with fewer environments."""
    del folder
    size = PPO_STEPS * PPO_ENVIRONMENTS
    return {
        "task": {
            "name": "clstm_ppo",
            "environment": {"name": "cartpole_memory"},
            "environments": PPO_ENVIRONMENTS,
            "rollout_steps": PPO_STEPS,
            "rollout_epochs": 4,
            "total_steps": PPO_ROLLOUTS * size,
            "policy": {"hidden": 256, "heads": [64, 64]},
        },
        "global_batch": size // 4,
        "precision": precision,
        "logging": {"every_steps": 16},
    }


def sae(folder: Path) -> dict[str, Any]:
    """A TopK SAE on random rows."""
    path = folder / "rows.npy"
    np.save(path, np.random.default_rng(0).standard_normal((50_000, 576), dtype=np.float32))
    keys = {"name": "sae", "activations": str(path), "latents": 8192, "k": 32}
    return {"task": keys, "global_batch": 4096, "steps": 36, "logging": {"every_steps": 3}}


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [3, 32, 32, 64, 64]
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)
        self.out = nn.Linear(widths[-1], 10)

    def forward(self, images: Tensor) -> Tensor:
        for layer in self.layers:
            images = F.gelu(layer(images))
        return self.out(images.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def cross_entropy(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def train(case: str, folder: Path) -> None:
    """What a side runs; its memory goes to a file beside the run."""
    run = {"run_dir": str(folder / "run"), "devices": "cpu", "checkpoint": {"at_end": False}}
    if case == "cnn":
        keys = {"steps": 36, "global_batch": 128, "logging": {"every_steps": 3}}
        images, labels = torch.randn(2048, 3, 64, 64), torch.randint(0, 10, (2048,))
        data = torch.utils.data.TensorDataset(images, labels)
        config = RunConfig(**run, **keys)
        Trainer(config, model=Convolutions, data=data, loss=cross_entropy).fit()
    else:
        found = sae(folder) if case == "sae" else ppo(folder, case.removeprefix("ppo_"))
        Trainer(parse_config(found | run)).fit()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (folder / "most").write_text(str(most))


def side(case: str, variables: dict[str, str]) -> tuple[float, float]:
    """Samples a second, and GiB held at most."""
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC_"))}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--case", case, "--folder", folder]
        environment = clean | variables
        told = subprocess.run(
            words, env=environment, stderr=subprocess.PIPE, text=True, check=False
        )
        if told.returncode:
            sys.exit(told.stderr)
        events = read_events(Path(folder) / "run" / "events.jsonl")
        steps = [event for event in events if event["kind"] == "step"]
        first, last = steps[len(steps) // 3], steps[-1]
        speed = (last["samples"] - first["samples"]) / (last["t"] - first["t"])
        return float(speed), int((Path(folder) / "most").read_text()) / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="ppo_fp32,ppo_bf16,sae,cnn", help="with commas")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        train(asked.case, asked.folder)
        return
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    print(COLUMNS, flush=True)
    for case in asked.cases.split(","):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
        for turn in range(asked.turns):
            for name in list(SIDES)[:: 1 if turn % 2 == 0 else -1]:
                found[name].append(side(case, SIDES[name]))
        speeds = {name: statistics.median(s for s, _ in all_) for name, all_ in found.items()}
        held = {name: statistics.median(h for _, h in all_) for name, all_ in found.items()}
        row = [case, torch.get_num_threads(), torch.__version__, cpu]
        row += [f"{speed:.0f}" for speed in speeds.values()]
        row += [f"{speeds['kept'] / speeds['given_back']:.2f}"]
        row += [f"{gib:.2f}" for gib in held.values()]
        print(",".join(map(str, row)), flush=True)


if __name__ == "__main__":
    main()
