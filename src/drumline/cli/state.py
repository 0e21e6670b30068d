"""What one run directory says of itself, also when parts of it are missing or damaged."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from drumline.cli.summary import Summary
from drumline.events import EventReader
from drumline.run_directory import RunDirectory

SILENT_AFTER_S = 600.0
"""A run that has no result and wrote no event for this long is called silent: it may have been
killed with its launcher, or it may be in one very long step."""

TAIL_BYTES = 256 * 1024
KEY_METRICS = ("fvu", "explained_loss", "episode_return", "accuracy", "loss")


@dataclass(frozen=True)
class RunState:
    """One line of `drumline runs`.

    Attributes:
        status: "done", "stopped" or "failed" once it has ended; "running", or "silent" (see
            `SILENT_AFTER_S`), or "new" while it has no event.
        started_t: Seconds since 1970.
        size_bytes: All files below the run directory.
    """

    path: Path
    name: str
    task: str
    status: str
    step: int
    steps: int | None
    metric: str | None
    value: Any
    started_t: float
    size_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """The state as plain data."""
        return {**vars(self), "path": str(self.path)}


def read_state(run: RunDirectory, now: float) -> RunState:
    """Read what a list needs: small files and the end of the event log."""
    config = read_config(run)
    summary = Summary()
    summary.feed(_last_events(run.events_path))
    result = run.result() or {}
    metrics = result.get("metrics") or summary.metrics
    metric = key_metric(config, metrics)
    step, steps = result.get("step"), summary.steps or config.get("steps")
    return RunState(
        path=run.path,
        name=run.path.name,
        task=task_name(config),
        status=status(summary, result, now),
        step=step if isinstance(step, int) else summary.step,
        steps=steps if isinstance(steps, int) else None,
        metric=metric,
        value=metrics.get(metric) if metric else None,
        started_t=run.config_path.stat().st_mtime,
        size_bytes=size_bytes(run.path),
    )


def read_config(run: RunDirectory) -> dict[str, Any]:
    """The config as plain data, unchecked; empty if it cannot be read."""
    try:
        value = yaml.safe_load(run.config_path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}


def task_name(config: dict[str, Any]) -> str:
    """The name of the task in a config; empty for a user's own loop."""
    task = config.get("task")
    return str(task.get("name", "")) if isinstance(task, dict) else ""


def status(summary: Summary, result: dict[str, Any], now: float) -> str:
    """How a run stands. A result that is older than the last attempt does not count."""
    if summary.end.get("status"):
        return str(summary.end["status"])
    if summary.last_t is None:
        return str(result.get("status", "new"))
    if result.get("status") and not summary.attempts:
        return str(result["status"])
    return "running" if now - summary.last_t < SILENT_AFTER_S else "silent"


def key_metric(config: dict[str, Any], metrics: dict[str, Any]) -> str | None:
    """The metric that the best checkpoint is chosen by, or the best known one there is."""
    keep_best = (config.get("checkpoint") or {}).get("keep_best") or {}
    chosen = [str(keep_best["metric"])] if "metric" in keep_best else []
    return next((name for name in (*chosen, *KEY_METRICS, *metrics) if name in metrics), None)


def size_bytes(path: Path) -> int:
    """All files below a folder; what vanishes meanwhile counts as nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total


def _last_events(path: Path) -> list[dict[str, Any]]:
    """The events at the end of a log: lists need no more, and logs may be large."""
    try:
        start = max(0, path.stat().st_size - TAIL_BYTES)
    except OSError:
        return []
    return EventReader(path, start=start).new()
