"""Runs that several modules look at: an SAE trained on a small set, once for each way to do it."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from support import Finished, run_to_end, train, write_config

ROWS, WIDTH, HELD_OUT, GLOBAL_BATCH = 4002, 16, 400, 96
"""Of 3602 rows trained on, the last batch of each epoch holds two: fewer than there are ranks."""


REGRESSION: dict[str, Any] = {
    "steps": 60,
    "global_batch": 48,
    "checkpoint": {"every_steps": 10},
    "optimizer": {"name": "adamw", "weight_decay": 0.01},
    "schedule": {"name": "cosine", "warmup_steps": 5},
}
"""The config of the program regression.py, where tests share a run of it."""


def sparse_rows(rows: int, width: int, features: int = 24, seed: int = 0) -> np.ndarray:
    """Rows that are sparse sums of directions, the later ones rare, plus noise and an offset."""
    random = np.random.default_rng(seed)
    directions = random.standard_normal((features, width))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    often = 0.25 / np.arange(1, features + 1) ** 0.7
    strength = random.exponential(1.0, (rows, features))
    active = (random.random((rows, features)) < often) * strength
    noise = 0.05 * random.standard_normal((rows, width))
    return active @ directions + noise + random.standard_normal(width)


class SAERuns:
    """Runs of `drumline train` on one set, each made when it is first asked for."""

    def __init__(self, activations: Path, folder: Path) -> None:
        self.activations, self.folder = activations, folder
        self._done: dict[str, Finished] = {}
        self._numbers = itertools.count()

    def config(self, **keys: Any) -> dict[str, Any]:
        """The config they share: TopK with AuxK and resampling at work; keys of the task go
        into its section.
        """
        task = {
            "name": "sae",
            "activations": str(self.activations),
            "latents": 64,
            "k": 4,
            "dead_after_samples": 400,
            "bias_samples": 512,
            "evaluation": {"samples": HELD_OUT},
            "resampling": {"every_steps": 60, "samples": 500},
        }
        return {
            "name": "sae",
            "task": {**task, **keys.pop("task", {})},
            "steps": 200,
            "global_batch": GLOBAL_BATCH,
            "precision": "fp64",
            "optimizer": {"lr": 3e-3},
            "logging": {"every_steps": 1},
            "checkpoint": {"every_steps": 50, "keep_last": 4},
            **keys,
        }

    def get(self, devices: str, **keys: Any) -> Finished:
        """A run that has succeeded, on some devices, with keys over the shared config."""
        name = json.dumps([devices, keys], sort_keys=True)
        if name not in self._done:
            folder = self.folder / f"run-{next(self._numbers)}"
            config = write_config(folder / "config.yaml", self.config(**keys))
            self._done[name] = run_to_end(train(config, devices), folder).succeeded()
        return self._done[name]

    def together(self, *devices: str, **keys: Any) -> list[Finished]:
        """Runs that are started at the same time."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(partial(self.get, **keys), devices))
