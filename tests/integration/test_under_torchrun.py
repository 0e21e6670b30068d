"""Plain torchrun starts the same trainings, with the same result."""

from __future__ import annotations

import json
from pathlib import Path

from shared_runs import REGRESSION, SAERuns
from support import PROGRAMS, Finished, assert_same_bits, run_to_end, torchrun, write_config


def run_found_by_ranks(folder: Path, ended: Finished) -> Finished:
    """The only run directory that the ranks made below `runs`."""
    (run,) = (folder / "runs").iterdir()
    return Finished(ended.code, ended.out, ended.err, run)


def test_a_config_under_torchrun_gives_the_same_weights(tmp_path: Path, sae_runs: SAERuns) -> None:
    config = write_config(tmp_path / "config.yaml", sae_runs.config())
    started = torchrun(2, "-m", "drumline", "train", str(config))
    ended = run_found_by_ranks(tmp_path, run_to_end(started, tmp_path).succeeded())
    assert ended.event("run_started")["world_size"] == 2
    assert_same_bits(ended.weights, sae_runs.get("cpu:2").weights)
    assert ended.losses == sae_runs.get("cpu:2").losses


def test_a_restart_by_torchrun_goes_on_in_the_same_run_directory(
    tmp_path: Path, undisturbed_regression: Finished
) -> None:
    options = {"config": REGRESSION, "kill": {"rank": 1, "call": 33}}
    program = [str(PROGRAMS / "regression.py"), json.dumps(options)]
    started = torchrun(3, *program, max_restarts=1)
    ended = run_found_by_ranks(tmp_path, run_to_end(started, tmp_path).succeeded())
    first, second = ended.events("run_started")
    assert [(e["attempt"], e["step"]) for e in (first, second)] == [(0, 0), (1, 30)]
    assert_same_bits(ended.weights, undisturbed_regression.weights)
    assert ended.losses == undisturbed_regression.losses
