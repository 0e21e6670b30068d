"""A device stays held until the last process that may use it is gone, not only its launcher, and
no plan gives it to anybody else until then.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import (
    PROGRAMS,
    Finished,
    Running,
    assert_all_gone,
    run_to_end,
    started,
    until,
    write_config,
)

from drumline.hardware import Machine
from drumline.hardware.device_locks import DeviceLocks, holders

DEVICE = "GPU-held"
CARDS = "2xH100"


@contextmanager
def holding(folder: Path, locks: Path, device: str) -> Iterator[tuple[Running, int]]:
    """A run that holds a device, and a process that has escaped from it, which is ended last."""
    paths = [str(PROGRAMS), os.environ.get("PYTHONPATH", "")]
    code = os.pathsep.join(filter(None, paths))
    command = [PROGRAMS / "holding.py", locks, folder / "run", device]
    with started(command, folder, PYTHONPATH=code) as run:
        run.rank_pids(1)
        until("an escaped process", (folder / "run" / "escaped").is_file)
        escaped = int((folder / "run" / "escaped").read_text())
        try:
            yield run, escaped
        finally:
            os.kill(escaped, signal.SIGKILL)
    assert_all_gone([escaped])


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir()
    return folder


def test_a_device_is_free_when_launcher_ranks_and_what_they_left_behind_are_gone(
    tmp_path: Path, locks: Path
) -> None:
    with holding(tmp_path, locks, DEVICE) as (run, _):
        ranks = run.rank_pids(1)
        assert holders(locks, [DEVICE])[DEVICE].pid == run.process.pid
        run.signal(signal.SIGKILL)
        run.finish()
        assert_all_gone(list(ranks.values()))
        assert set(holders(locks, [DEVICE])) == {DEVICE}
    DeviceLocks(locks, [DEVICE]).release()


def test_plans_go_around_a_device_that_a_run_holds_until_all_of_the_run_is_killed(
    tmp_path: Path, locks: Path
) -> None:
    first, second = (device.uuid for device in Machine.probe(simulate=CARDS).devices)
    config = write_config(tmp_path / "config.yaml", {"steps": 1, "global_batch": 8})

    def ask(*words: str) -> Finished:
        command = [PROGRAMS / "on_cards.py", CARDS, words[0], config, *words[1:], "--json"]
        return run_to_end(command, tmp_path / "asking", DRUMLINE_LOCK_FOLDER=str(locks))

    def given(*words: str) -> tuple[list[str], str]:
        """The devices of a plan, and its reasons."""
        read: dict[str, Any] = json.loads(ask(*words).succeeded().out)
        made = read.get("plan", read)
        return [device["uuid"] for device in made["devices"]], " ".join(made["reasons"])

    with holding(tmp_path, locks, first) as (run, _):
        devices, reasons = given("plan")
        assert devices == [second]
        who = f"({run.run})"
        assert f"{first}): held by process {run.process.pid} of " in reasons and who in reasons
        assert given("train", "--dry-run")[0] == devices
        assert given("plan", "--per-device", "8")[0] == devices
        refused = json.loads(ask("plan", "--gpus", "0,").ended_with(2).out)["error"]
        assert f"{first}) is held by process {run.process.pid} of " in refused["message"]
        assert who in refused["message"] and f"{second}) is free" in refused["remedy"]
        run.signal(signal.SIGKILL)
        run.finish()
        assert given("plan")[0] == [second]  # what escaped holds it still
    assert given("plan")[0] == [first, second]
    assert given("plan", "--gpus", "0,")[0] == [first]
