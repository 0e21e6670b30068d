"""A run in Weights & Biases; offline it writes below the run directory and needs no network."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from drumline.config import RunConfig
from drumline.trackers.scalars import scalars


class WandbTracker:
    """Logs scalars to one W&B run for each run directory.

    W&B's own step may only grow, and a restart goes back; so the step is logged as a number of
    its own and all charts are drawn over it.
    """

    def __init__(self, path: Path, config: RunConfig) -> None:
        if config.logging.wandb_mode == "offline":
            # Offline, W&B still reports its own errors and timings to its makers, and waits for
            # an answer; it takes a no only from the environment, before its import.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run: Any = wandb.init(
            project=config.logging.wandb_project,
            name=path.name,
            id=hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(path),
            mode=config.logging.wandb_mode,
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def feed(self, events: list[dict[str, Any]]) -> None:
        """Log the numbers of more events; at the run's end also its final metrics as summary."""
        for event in events:
            step, values = event.get("step"), scalars(event)
            if values and isinstance(step, int):
                self._run.log({**values, "step": step, "_timestamp": event["t"]})
            if event.get("kind") == "run_ended" and isinstance(event.get("metrics"), dict):
                self._run.summary.update(event["metrics"])

    def close(self) -> None:
        """Finish the W&B run."""
        if self._run is not None:
            self._run.finish()
            self._run = None
