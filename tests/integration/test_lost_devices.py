"""A device that falls off the bus: the run goes on with the others, and its result is the same."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import SAERuns
from support import PROGRAMS, Finished, largest_difference, started, write_config

EXACT = 1e-9


def say(folder: Path, lost: list[str]) -> Path:
    """What the machine has: three devices, of which some are lost."""
    path = folder / "machine.json"
    path.with_suffix(".new").write_text(json.dumps({"count": 3, "lost": lost}))
    path.with_suffix(".new").replace(path)
    return path


def lose(folder: Path, config: dict[str, Any], rank: int) -> Finished:
    """A run on three devices of which one is lost, with its rank, after some steps."""
    file = write_config(folder / "config.yaml", config)
    program = PROGRAMS / "on_listed_devices.py"
    with started([program, file, "run", say(folder, [])], folder) as running:
        running.wait_for_step(60)
        pids = running.rank_pids(3)
        say(folder, [f"PROCESS-{rank}"])
        os.kill(pids[rank], signal.SIGKILL)
        return running.finish()


@pytest.mark.parametrize(("rank", "mode"), [(1, "auto"), (2, "sharded")])
def test_the_run_goes_on_with_the_devices_that_are_left(
    tmp_path: Path, sae_runs: SAERuns, rank: int, mode: str
) -> None:
    run = lose(tmp_path, sae_runs.config(distributed={"mode": mode}), rank).succeeded()
    assert [e["world_size"] for e in run.events("attempt_started")] == [3, 2]
    ended, _ = run.events("attempt_ended")
    assert (ended["cause"], ended["action"]) == (
        "device_lost",
        "restart on the devices that are left",
    )
    assert f"PROCESS-{rank}" in ended["message"]
    assert "it fell off the bus" in ended["message"]
    lost = run.event("devices_lost")
    assert lost["devices"] == [f"PROCESS-{n}" for n in range(3) if n != rank]
    assert lost["shares"] == [48, 48]
    first, second = run.events("run_started")
    assert second["step"] == 50
    assert first["micro_batch"] == second["micro_batch"] == 32  # shares grew, and forwards did not
    plan = json.loads((run.run / "plan.json").read_text())
    assert plan["world_size"] == 2
    alone = sae_runs.get("cpu:1")
    assert run.losses == pytest.approx(alone.losses, rel=EXACT, abs=0)
    assert largest_difference(run.weights, alone.weights) <= EXACT


def test_a_mesh_that_fits_no_longer_ends_the_run_and_says_why(
    tmp_path: Path, sae_runs: SAERuns
) -> None:
    spread = {"mode": "hybrid", "mesh": {"data": 1, "shard": 3}}
    run = lose(tmp_path, sae_runs.config(distributed=spread), 0).ended_with(1)
    assert run.result["cause"] == "device_lost"
    assert "PROCESS-0" in run.result["message"]
    assert "does not fit 2 ranks" in run.result["message"]
    assert len(run.events("attempt_started")) == 1
