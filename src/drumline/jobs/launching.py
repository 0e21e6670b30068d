"""What a supervisor starts: the launcher of one attempt, with its devices and an environment that
is made, not inherited.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.config.environment import CACHE_FOLDER, LOCK_FOLDER, MARK
from drumline.config.service import ServiceSettings
from drumline.events import EventLog
from drumline.jobs.endings import LAST_WORD
from drumline.run_directory import RunDirectory

_ALWAYS = ("PYTHONPATH", "VIRTUAL_ENV", LOCK_FOLDER, CACHE_FOLDER, "XDG_CACHE_HOME")
"""Without these another Drumline may be started, devices be locked where nobody looks, or what
the plan has predicted not be found."""

_SIMULATED = "SIM-"


def mark_of(training_id: str, number: int) -> str:
    """What all processes of an attempt carry."""
    return f"{training_id}/{number}"


def run_path(run_dir: str | None, root: Path, name: str) -> Path:
    """Where a training runs: its run directory, or a new one below the root."""
    return Path(run_dir) if run_dir else root / RunDirectory.new_name(name)


def prepare(path: Path, config: Mapping[str, Any], gpu_ids: Sequence[str]) -> RunDirectory:
    """The run directory with the config in it; an event says so where devices are simulated.

    Raises:
        RunDirectoryError: If it cannot be written.
    """
    run = RunDirectory.create(path)
    run.write_config({**config, "run_dir": None})
    if simulated := [uuid for uuid in gpu_ids if uuid.startswith(_SIMULATED)]:
        log = EventLog(run.events_path)
        log.emit(
            "warning",
            code="simulated_devices",
            message=f"The {len(simulated)} devices are simulated: ranks are CPU processes.",
            devices=simulated,
        )
        log.close()
    return run


def devices_of(config: Mapping[str, Any], gpu_ids: Sequence[str]) -> str:
    """What the launcher is told to use: devices by UUID, or as many CPU processes as are simulated.

    A training without devices gets the CPU processes its config asks for, or one.
    """
    if not gpu_ids:
        asked = str(config.get("devices", ""))
        return asked if asked.startswith("cpu") else "cpu"
    if all(uuid.startswith(_SIMULATED) for uuid in gpu_ids):
        return f"cpu:{len(gpu_ids)}"
    return ",".join(gpu_ids)


def environment(settings: ServiceSettings, mark: str, own: Mapping[str, str]) -> dict[str, str]:
    """Variables of a training: those allowed among the `own` ones of this process, and the mark."""
    allowed = {*settings.passed_environment, *_ALWAYS}
    return {**{name: own[name] for name in sorted(allowed) if name in own}, MARK: mark}


def start_launcher(
    run: RunDirectory, devices: str, settings: ServiceSettings, mark: str
) -> subprocess.Popen[bytes]:
    """`drumline train` on the run directory, in a session of its own; it goes on from the last
    checkpoint if there is one. What it prints is in the folder of logs.
    """
    command = [sys.executable, "-m", "drumline", "train", "--resume", str(run.path)]
    with (
        (run.logs_path / LAST_WORD).open("wb") as out,
        (run.logs_path / "launcher.log").open("ab") as err,
    ):
        return subprocess.Popen(
            [*command, "--gpus", devices, "--json"],
            env=environment(settings, mark, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
