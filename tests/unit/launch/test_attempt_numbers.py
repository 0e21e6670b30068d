"""Which number the next attempt gets."""

from __future__ import annotations

from pathlib import Path

from drumline.events import EventLog
from drumline.launch.launcher import _next_attempt
from drumline.run_directory import RunDirectory


def test_what_was_told_before_any_attempt_is_of_none(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    log = EventLog(run.events_path)
    log.emit("warning", code="simulated_devices", message="")
    assert _next_attempt(run) == 0
    log.emit("attempt_started", world_size=2)
    assert _next_attempt(run) == 1


def test_attempts_of_another_launcher_count(tmp_path: Path) -> None:
    """torchrun writes no attempt_started; its ranks' events tell of the attempt."""
    run = RunDirectory.create(tmp_path / "run")
    EventLog(run.events_path, attempt=3, rank=0).emit("rank_started", pid=1)
    assert _next_attempt(run) == 4
