"""A folder of its own for every test, and a run directory made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.events import EventLog
from drumline.run_directory import RunDirectory

PLAN = {
    "mode": "distributed",
    "backend": "gloo",
    "world_size": 2,
    "devices": [{"uuid": "GPU-1a", "name": "H100"}, {"uuid": "GPU-2b", "name": "H100"}],
    "shares": [9, 3],
    "micro_batch": 4,
    "reasons": ["the second device is three times slower [measured]"],
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")


class MadeRun:
    """Writes a run directory below ./runs as a training would."""

    def __init__(self, name: str, **config: Any) -> None:
        self.run = RunDirectory.create(Path("runs") / name)
        self.run.write_config({"name": name, "task": {"name": "sae"}, "steps": 40, **config})
        self.log = EventLog(self.run.events_path)

    def train(self, last: int = 40) -> MadeRun:
        """An attempt that dies after step 20 and one that goes on from step 10."""
        self.run.write_json(self.run.plan_path, PLAN)
        self.log.emit("run_started", name="x", task="sae", steps=40, world_size=2)
        self.log.emit("attempt_started", world_size=2, resumed_from=None)
        self.steps(10, 20)
        self.log.emit("rank_failed", rank=1, message="killed", remedy="")
        self.log.emit("attempt_ended", cause="rank_failed", message="rank 1 was killed", ranks=[])
        self.log.attempt = 1
        self.log.emit("attempt_started", world_size=2, resumed_from=10)
        self.steps(20, last)
        return self

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1, 10):
            self.log.emit(
                "step", step=step, steps=40, loss=100.0 / step, metrics={"fvu": 1.0 / step}
            )
            self.log.emit("evaluation", step=step, metrics={"explained_loss": step / 40})
        self.log.emit("checkpoint", step=last, path=f"checkpoints/step-{last}", bytes=1500)

    def end(self, status: str, **fields: Any) -> MadeRun:
        ended = {"status": status, "message": "", "step": 40, "samples": 480, "seconds": 75.0}
        ended |= {"metrics": {"fvu": 0.025}, **fields}
        self.log.emit("run_ended", **ended)
        self.run.write_json(self.run.result_path, {**ended, "exit_code": 0, "attempts": 2})
        return self


@pytest.fixture
def made_run() -> type[MadeRun]:
    return MadeRun
