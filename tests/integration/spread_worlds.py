"""Launches worlds of small models for the tests of modes, and reads what they found."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from drumline.training.checkpoint import CheckpointStore

PROGRAM = Path(__file__).parent / "programs" / "spread_runs.py"
DEADLINE_S = 800.0
STEPS = 100

Case = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """What a case left behind."""

    folder: Path

    @property
    def found(self) -> dict[str, Any]:
        """What rank 0 wrote; see the program."""
        value: dict[str, Any] = json.loads((self.folder / "found.json").read_text())
        return value

    @property
    def refusals(self) -> list[dict[str, str]]:
        """What each rank raised."""
        value: list[dict[str, str]] = json.loads((self.folder / "refused.json").read_text())
        return value

    @property
    def losses(self) -> dict[int, float]:
        """By step; a step that was skipped has none."""
        return {int(s): loss for s, loss in self.found["losses"].items() if loss is not None}

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Of the last checkpoint, verified."""
        checkpoint = CheckpointStore(self.folder / "checkpoints").choose("last")
        return dict(load_file(checkpoint.weights_path))

    @property
    def optimizer(self) -> dict[str, Any]:
        """The optimizer's state in the last checkpoint."""
        checkpoint = CheckpointStore(self.folder / "checkpoints").choose("last")
        state: dict[str, Any] = checkpoint.load_state()["optimizer"]
        return state


def case(folder: Path, name: str, model: str, distributed: dict[str, Any], **keys: Any) -> Case:
    """A case of the program; `case_*` keys go to it, all others into the config."""
    found = {"name": name, "model": model, "folder": str(folder / name)}
    found |= {k.removeprefix("case_"): keys.pop(k) for k in [*keys] if k.startswith("case_")}
    spread = {
        "find_unused_parameters": model == "transformer",
        "sync_batchnorm": model == "cnn",
        **distributed,
    }
    config = {
        "name": "modes",
        "steps": STEPS,
        "global_batch": 16,
        # BatchNorm's result depends on micro-batches; the others' does not.
        "micro_batch": None if model == "cnn" else 3,
        "precision": "fp64",
        "clip_norm": 0.5,
        "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.01},
        "logging": {"every_steps": 1},
        "distributed": spread,
        **keys,
    }
    return {**found, "config": config}


def launch(size: int, cases: list[Case], folder: Path, backend: str = "gloo") -> dict[str, Trained]:
    """Train all cases in one world of `size` processes; by name what they left."""
    given = folder / f"{cases[0]['name']}-and-others-on-{size}.json"
    given.write_text(json.dumps(cases))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    logs = [folder / f"{given.stem}-rank-{rank}.log" for rank in range(size)]
    ranks = []
    try:
        for rank, log in enumerate(logs):
            arguments = [
                sys.executable,
                str(PROGRAM),
                *map(str, (rank, size, port, given, backend)),
            ]
            with log.open("w") as out:
                ranks.append(subprocess.Popen(arguments, stdout=out, stderr=out, env=environment))
        codes = [rank.wait(DEADLINE_S) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert codes == [0] * size, "\n".join(log.read_text()[-3000:] for log in logs)
    return {each["name"]: Trained(Path(each["folder"])) for each in cases}


def launch_together(
    cases: dict[int, list[Case]], folder: Path, backend: str = "gloo"
) -> dict[str, Trained]:
    """As `launch`, with worlds of several sizes at once: most ranks wait most of the time."""
    with ThreadPoolExecutor() as pool:
        made = pool.map(lambda size: launch(size, cases[size], folder, backend), cases)
        return {name: trained for found in made for name, trained in found.items()}


def largest_difference(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """The largest difference of any two tensors or numbers of the same name."""
    assert ours.keys() == theirs.keys()
    return max(float((_double(ours[name]) - _double(theirs[name])).abs().max()) for name in ours)


def _double(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)  # a number would become float32


def same_bits(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    """Whether all tensors are equal in every bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
