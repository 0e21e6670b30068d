"""Devices that fall off the bus: the run goes on with the others, and its result is the same."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from shared_runs import SAERuns
from support import PROGRAMS, Finished, Running, largest_difference, started, write_config

EXACT = 1e-9


def say(folder: Path, count: int, lost: list[str]) -> Path:
    """What the machine has: so many devices, of which some are lost."""
    path = folder / "machine.json"
    path.with_suffix(".new").write_text(json.dumps({"count": count, "lost": lost}))
    path.with_suffix(".new").replace(path)
    return path


def lose(folder: Path, config: dict[str, Any], *ranks: int, of: int = 3) -> Finished:
    """A run on some devices of which one after the other is lost, each with the rank that it has
    in the attempt, after some steps of it.
    """
    file = write_config(folder / "config.yaml", config)
    program, lost = PROGRAMS / "on_listed_devices.py", list[str]()
    with started([program, file, "run", say(folder, of, lost)], folder) as running:
        for attempt, rank in enumerate(ranks):
            wait_for_step(running, attempt, 60 + 50 * attempt)
            devices = json.loads((running.run / "plan.json").read_text())["devices"]
            pids = running.rank_pids(len(devices))
            lost.append(devices[rank]["uuid"])
            say(folder, of, lost)
            os.kill(pids[rank], signal.SIGKILL)
        return running.finish()


def wait_for_step(running: Running, attempt: int, step: int) -> None:
    running.wait_for(
        f"step {step} of attempt {attempt}",
        lambda events: any(
            (e["kind"], e["attempt"]) == ("step", attempt) and e["step"] >= step for e in events
        ),
    )


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


@pytest.mark.parametrize("mode", ["auto", "sharded"])
def test_a_second_loss_is_answered_as_the_first_until_one_device_is_left(
    tmp_path: Path, sae_runs: SAERuns, mode: str
) -> None:
    run = lose(tmp_path, sae_runs.config(distributed={"mode": mode}), 1, 0).succeeded()
    assert [e["world_size"] for e in run.events("attempt_started")] == [3, 2, 1]
    first, second = run.events("devices_lost")
    assert (first["devices"], first["shares"]) == (["PROCESS-0", "PROCESS-2"], [48, 48])
    assert (second["devices"], second["shares"]) == (["PROCESS-2"], [96])
    assert "PROCESS-1" in first["lost"][0] and "PROCESS-0" in second["lost"][0]
    assert [e["cause"] for e in run.events("attempt_ended")][:2] == ["device_lost"] * 2
    begun = run.events("run_started")
    steps = [e["step"] for e in begun]  # a checkpoint is written every fifty
    assert steps[0] == 0 and steps[1] >= 50 and steps[2] >= 100
    assert [e["micro_batch"] for e in begun] == [32, 32, 32]
    assert run.result["attempts"] == 3
    alone = sae_runs.get("cpu:1")
    assert run.losses == pytest.approx(alone.losses, rel=EXACT, abs=0)
    assert largest_difference(run.weights, alone.weights) <= EXACT


def test_a_device_for_which_a_mesh_had_no_place_stands_in_at_the_next_loss(
    tmp_path: Path, sae_runs: SAERuns
) -> None:
    spread = {"mode": "hybrid", "mesh": {"data": -1, "shard": 2}}
    run = lose(tmp_path, sae_runs.config(distributed=spread), 0, 1, of=4).succeeded()
    assert [e["world_size"] for e in run.events("attempt_started")] == [4, 2, 2]
    assert [e["devices"] for e in run.events("devices_lost")] == [
        ["PROCESS-1", "PROCESS-2"],
        ["PROCESS-1", "PROCESS-3"],
    ]
    alone = sae_runs.get("cpu:1")
    assert run.losses == pytest.approx(alone.losses, rel=EXACT, abs=0)
    assert largest_difference(run.weights, alone.weights) <= EXACT


def test_when_the_last_device_is_lost_the_run_ends_and_says_so(
    tmp_path: Path, sae_runs: SAERuns
) -> None:
    run = lose(tmp_path, sae_runs.config(), 0, 0, of=2).ended_with(1)
    assert [e["world_size"] for e in run.events("attempt_started")] == [2, 1]
    assert run.result["cause"] == "device_lost"
    assert "PROCESS-1" in run.result["message"]
    assert run.result["message"].endswith("no device is left")
    assert run.result["step"] >= 110  # what was reached is in its checkpoints


def test_losses_count_as_restarts(tmp_path: Path, sae_runs: SAERuns) -> None:
    run = lose(tmp_path, sae_runs.config(distributed={"max_restarts": 1}), 2, 1).ended_with(1)
    assert [e["world_size"] for e in run.events("attempt_started")] == [3, 2]
    assert len(run.events("devices_lost")) == 1
    assert "PROCESS-1" in run.result["message"]
    assert run.result["message"].endswith("no restart is left")
    assert "distributed.max_restarts" in run.result["remedy"]
