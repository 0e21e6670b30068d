"""Stores and small models that tests of checkpoints share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from drumline.config import CheckpointConfig
from drumline.training.checkpoint import Checkpoint, CheckpointStore


def store_of(folder: Path, **keys: Any) -> CheckpointStore:
    return CheckpointStore(folder, CheckpointConfig(**keys))


def linear(value: float, size: int = 4) -> nn.Linear:
    model = nn.Linear(size, size)
    nn.init.constant_(model.weight, value)
    return model


def save(store: CheckpointStore, step: int, **metrics: float) -> Checkpoint:
    return store.save(step, linear(step), {"step": step}, metrics)


def steps(store: CheckpointStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.all()]


def newest_good(store: CheckpointStore) -> Checkpoint | None:
    return next((found for _, found, _ in store.examine() if found is not None), None)


def flip(path: Path, place: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1
    path.write_bytes(data)
