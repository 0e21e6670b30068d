"""Checkpoints that are whole or absent.

A checkpoint is a folder `checkpoints/step-N` with the weights (`model.safetensors`), everything
else (`training.pt`, read with `weights_only=True`, so nothing in it is ever run) and `COMMIT.json`,
which names every file with its size and SHA-256 and carries a seal over itself. It is written
aside, flushed to the disk and renamed; a folder without a commit marker, or whose files do not
match it, is not a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from drumline.config import CheckpointConfig
from drumline.distributed import HasState
from drumline.errors import BadInput, CheckpointError
from drumline.training.weights_file import load_weights, save_weights

FORMAT = 1
WEIGHTS, STATE, COMMIT = "model.safetensors", "training.pt", "COMMIT.json"
_ASIDE, _OLD = ".partial", "old-"


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
            load_weights(model, self.weights_path)
        except RuntimeError as error:
            raise CheckpointError(
                f"{self.path} does not fit the model: {' '.join(str(error).split())}",
                remedy="Resume with the config the run was started with.",
            ) from error

    def load_state(self) -> dict[str, Any]:
        """Everything but the weights, on the CPU, read from the file where it is looked at.

        Raises:
            CheckpointError: If the file holds anything but tensors and plain values.
        """
        try:
            state: dict[str, Any] = torch.load(
                self.path / STATE, map_location="cpu", weights_only=True, mmap=True
            )
        except UnpicklingError as error:
            raise CheckpointError(
                f"{self.path / STATE} holds more than tensors and values; none of it was run.",
                remedy="Use checkpoints that Drumline wrote.",
            ) from error
        return state

    def verify(self) -> None:
        """Compare every file with the commit marker.

        Raises:
            CheckpointError: With the first difference.
        """
        for name, fact in _read_commit(self.path)["files"].items():
            path = self.path / name
            try:
                _compare(path, fact["bytes"], fact["sha256"])
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error


class CheckpointStore:
    """The checkpoints of one run. Only rank 0 writes."""

    def __init__(self, folder: Path, config: CheckpointConfig | None = None) -> None:
        self.folder = folder
        self.config = config or CheckpointConfig()

    def save(
        self, step: int, model: HasState, state: dict[str, Any], metrics: dict[str, float]
    ) -> Checkpoint:
        """Write a checkpoint, whole or not at all, then drop those no longer kept.

        Raises:
            CheckpointError: If it could not be written; what was written of it is removed.
        """
        final = self.folder / f"step-{step:010d}"
        checkpoint = write_checkpoint(final, step, model, state, metrics)
        self._drop_old(step)
        return checkpoint

    def tidy(self) -> None:
        """Finish or remove what a process that was killed has left. Only rank 0, before a run.

        A checkpoint is whole once its marker is written; if the process died before the renaming,
        that is made good here.
        """
        for aside in self.folder.glob(f"step-*{_ASIDE}"):
            _finish(aside)
        for leftover in (*self.folder.glob(f"step-*{_ASIDE}"), *self.folder.glob(f"{_OLD}*")):
            shutil.rmtree(leftover, ignore_errors=True)

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
        """The checkpoint with the best value of `keep_best.metric`, if there is one.

        NaN is no value; of equal values the earliest counts.
        """
        rule = self.config.keep_best
        if rule is None:
            return None
        scored = [c for c in self.all() if not math.isnan(c.metrics.get(rule.metric, math.nan))]
        sign = 1 if rule.goal == "min" else -1
        return min(scored, key=lambda c: (sign * c.metrics[rule.metric], c.step), default=None)

    def _drop_old(self, step: int) -> None:
        """Keep the newest up to `step`, and the best. What is newer than `step` was refused when
        this attempt began; it must not push out what this attempt writes.
        """
        best = self.best()
        past = [checkpoint for checkpoint in self.all() if checkpoint.step <= step]
        for old in past[self.config.keep_last :]:
            if best is None or old.path != best.path:
                with suppress(OSError):
                    _remove(old.path)


def _reason(error: BaseException) -> str:
    """The system's reason, which torch.save hides behind an error of its own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f"{cause.strerror}."
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())


def write_checkpoint(
    final: Path, step: int, model: HasState, state: dict[str, Any], metrics: dict[str, float]
) -> Checkpoint:
    """Write a checkpoint as the folder `final`, whole or not at all. One rank only.

    Raises:
        CheckpointError: If it could not be written; what was written of it is removed.
    """
    aside = final.with_name(f"{final.name}{_ASIDE}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        save_weights(model, aside / WEIGHTS)
        with (aside / STATE).open("wb") as file:
            torch.save(state, file)
        _commit(aside, step, metrics)
        _publish(aside, final)
    except Exception as error:  # safetensors and torch.save each raise errors of their own
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"The checkpoint of step {step} could not be written: {_reason(error)}",
            remedy="Training goes on; free space on the disk.",
            step=step,
        ) from error
    return Checkpoint(final, step, metrics)


def open_checkpoint(final: Path) -> Checkpoint:
    """The checkpoint in a folder, verified; one whose writer was killed at the renaming is made
    good first. One rank only.

    Raises:
        CheckpointError: If there is none, or it is damaged.
    """
    aside = final.with_name(f"{final.name}{_ASIDE}")
    if aside.exists():
        _finish(aside)
    marker = _read_commit(final)
    checkpoint = Checkpoint(final, int(marker["step"]), dict(marker["metrics"]))
    checkpoint.verify()
    return checkpoint


def _finish(aside: Path) -> None:
    """Give a checkpoint that is whole its name; leave one that is not."""
    with suppress(CheckpointError):
        Checkpoint(aside, 0, {}).verify()
        _publish(aside, aside.with_name(aside.name.removesuffix(_ASIDE)))


def _publish(aside: Path, final: Path) -> None:
    """Give a checkpoint that is written its name. One of the same step goes once this is there."""
    old = final.with_name(f"{_OLD}{final.name}")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    aside.rename(final)
    _flush(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove a checkpoint: first out of sight, so that a kill leaves no half one."""
    old = folder.with_name(f"{_OLD}{folder.name}")
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def _compare(path: Path, size: int, digest: str) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing.")
    there = path.stat().st_size
    if there != size:
        raise CheckpointError(f"{path} is truncated: {there} bytes where {size} were written.")
    if _sha256(path) != digest:
        raise CheckpointError(f"{path} is damaged: its checksum does not match.")


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
    path.write_text(json.dumps({**marker, "seal": _seal(marker)}, indent=2))
    _flush(path)
    _flush(folder)


def _read_commit(folder: Path) -> dict[str, Any]:
    try:
        marker: dict[str, Any] = json.loads((folder / COMMIT).read_text())
        seal = marker.pop("seal", None)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is half-written: it was never committed.") from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{folder} has a damaged commit marker: {error}.") from None
    if seal != _seal(marker):
        raise CheckpointError(f"{folder} has a damaged commit marker: its seal does not match.")
    if marker.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} has format {marker.get('format')}, and this version reads {FORMAT}."
        )
    return marker


def _seal(marker: dict[str, Any]) -> str:
    """SHA-256 over everything else that a marker says."""
    return hashlib.sha256(json.dumps(marker, sort_keys=True).encode()).hexdigest()


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
