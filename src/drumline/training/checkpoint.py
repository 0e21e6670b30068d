"""Checkpoints that are whole or absent.

A checkpoint is a folder `checkpoints/step-N` with the weights (`model.safetensors`), everything
else (`training.pt`, read with `weights_only=True`, so nothing in it is ever run) and `COMMIT.json`,
which names every file with its size and SHA-256. It is written aside, flushed to the disk and
renamed; a folder without a commit marker, or whose files do not match it, is not a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn

from drumline.config import CheckpointConfig
from drumline.errors import BadInput, CheckpointError

FORMAT = 1
WEIGHTS, STATE, COMMIT = "model.safetensors", "training.pt", "COMMIT.json"
_ASIDE = ".partial"


@dataclass(frozen=True)
class Checkpoint:
    """One committed checkpoint; its files are not read until they are asked for."""

    path: Path
    step: int
    metrics: dict[str, float]

    @property
    def weights_path(self) -> Path:
        """The model's weights."""
        return self.path / WEIGHTS

    def load_weights(self, model: nn.Module) -> None:
        """Load the weights into a model of the same shapes.

        Raises:
            CheckpointError: If names or shapes differ.
        """
        try:
            load_model(model, self.weights_path, strict=True)
        except RuntimeError as error:
            raise CheckpointError(
                f"{self.path} does not fit the model: {' '.join(str(error).split())}",
                remedy="Resume with the config the run was started with.",
            ) from error

    def load_state(self) -> dict[str, Any]:
        """Everything but the weights, on the CPU."""
        state: dict[str, Any] = torch.load(self.path / STATE, map_location="cpu", weights_only=True)
        return state

    def verify(self) -> None:
        """Compare every file with the commit marker.

        Raises:
            CheckpointError: With the first difference.
        """
        files = _read_commit(self.path)["files"]
        for name, fact in files.items():
            path = self.path / name
            if not path.is_file():
                raise CheckpointError(f"{path} is missing.")
            size = path.stat().st_size
            if size != fact["bytes"]:
                raise CheckpointError(
                    f"{path} is truncated: {size} bytes where {fact['bytes']} were written."
                )
            if _sha256(path) != fact["sha256"]:
                raise CheckpointError(f"{path} is damaged: its checksum does not match.")


class CheckpointStore:
    """The checkpoints of one run. Only rank 0 writes."""

    def __init__(self, folder: Path, config: CheckpointConfig | None = None) -> None:
        self.folder = folder
        self.config = config or CheckpointConfig()

    def save(
        self, step: int, model: nn.Module, state: dict[str, Any], metrics: dict[str, float]
    ) -> Checkpoint:
        """Write a checkpoint, whole or not at all, then drop those no longer kept.

        Raises:
            CheckpointError: If it could not be written; what was written of it is removed.
        """
        final = self.folder / f"step-{step:010d}"
        aside = self.folder / f"{final.name}{_ASIDE}"
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            save_model(model, str(aside / WEIGHTS))
            with (aside / STATE).open("wb") as file:
                torch.save(state, file)
            _commit(aside, step, metrics)
            shutil.rmtree(final, ignore_errors=True)
            aside.rename(final)
            _flush(self.folder)
        except Exception as error:  # safetensors and torch.save each raise errors of their own
            shutil.rmtree(aside, ignore_errors=True)
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"The checkpoint of step {step} could not be written: {reason}",
                remedy="Training goes on; free space on the disk.",
                step=step,
            ) from error
        self._drop_old()
        return Checkpoint(final, step, metrics)

    def all(self) -> list[Checkpoint]:
        """Committed checkpoints, newest first. Their files have not been verified."""
        found = []
        for path in self.folder.glob("step-*"):
            try:
                marker = _read_commit(path)
            except CheckpointError:
                continue
            found.append(Checkpoint(path, int(marker["step"]), dict(marker["metrics"])))
        return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)

    def examine(self) -> Iterator[tuple[Path, Checkpoint | None, str]]:
        """Every folder that looks like a checkpoint, newest first: (path, it or None, why not)."""
        for path in sorted(self.folder.glob("step-*"), reverse=True):
            try:
                if path.name.endswith(_ASIDE):
                    raise CheckpointError(f"{path} is half-written: it was never committed.")
                marker = _read_commit(path)
                checkpoint = Checkpoint(path, int(marker["step"]), dict(marker["metrics"]))
                checkpoint.verify()
            except CheckpointError as error:
                yield path, None, error.message
            else:
                yield path, checkpoint, ""

    def choose(self, which: str) -> Checkpoint:
        """The checkpoint that a user names: "best", "last" or a step; verified.

        "best" is the last one where the config has no `keep_best`.

        Raises:
            BadInput: If there is none, naming those there are.
            CheckpointError: If it is damaged.
        """
        there = self.all()
        if which in ("best", "last"):
            found = (self.best() if which == "best" else None) or (there[0] if there else None)
        else:
            found = next((c for c in there if str(c.step) == which), None)
        if found is None:
            steps = ", ".join(str(c.step) for c in there) or "none"
            raise BadInput(
                f"{self.folder} has no checkpoint {which}.", remedy=f"There are: {steps}."
            )
        found.verify()
        return found

    def best(self) -> Checkpoint | None:
        """The checkpoint with the best value of `keep_best.metric`, if there is one."""
        rule = self.config.keep_best
        if rule is None:
            return None
        scored = [c for c in self.all() if rule.metric in c.metrics]
        sign = 1 if rule.goal == "min" else -1
        return min(scored, key=lambda c: (sign * c.metrics[rule.metric], c.step), default=None)

    def _drop_old(self) -> None:
        best = self.best()
        for old in self.all()[self.config.keep_last :]:
            if best is None or old.path != best.path:
                trash = old.path.with_name(f"old-{old.path.name}")
                old.path.rename(trash)  # first out of sight, so that a kill leaves no half one
                shutil.rmtree(trash, ignore_errors=True)


def _commit(folder: Path, step: int, metrics: dict[str, float]) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        _flush(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    marker = {
        "format": FORMAT,
        "step": step,
        "metrics": metrics,
        "time": time.time(),
        "torch": torch.__version__,
        "files": files,
    }
    path = folder / COMMIT
    path.write_text(json.dumps(marker, indent=2))
    _flush(path)
    _flush(folder)


def _read_commit(folder: Path) -> dict[str, Any]:
    try:
        marker: dict[str, Any] = json.loads((folder / COMMIT).read_text())
        _ = marker["files"], marker["metrics"], marker["step"]
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is half-written: it was never committed.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} has a damaged commit marker: {error}.") from None
    if marker.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} has format {marker.get('format')}, and this version reads {FORMAT}."
        )
    return marker


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Bring a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
