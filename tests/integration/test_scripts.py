"""The launcher scripts start real processes that train to the end."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_commands import ROOT, command_environment, free_port, run_command

SCRIPTS = ROOT / "scripts"
LAUNCHERS = ["train_torchrun.sh", "train_torch_distributed_launch.sh", "train_multinode.sh"]
ALL = [*LAUNCHERS, "train_slurm.sbatch", "check_fresh_clone.sh"]
CONFIG = """
name: tiny
steps: 6
global_batch: 12
run_dir: run
task: {name: sae, activations: acts.npy, latents: 16, k: 2, evaluation: {samples: 16}}
checkpoint: {every_steps: 2}
logging: {every_steps: 1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32)
    np.save(tmp_path / "acts.npy", rows)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


def trained(run: Path) -> dict[str, Any]:
    """The result of a run that two ranks trained to its end."""
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    started = next(event for event in events if event["kind"] == "run_started")
    assert (result["status"], result["step"], result["samples"]) == ("done", 6, 72)
    assert (started["world_size"], started["shares"]) == (2, [6, 6])
    return result


def test_torchrun(folder: Path) -> None:
    done = run_command(folder, SCRIPTS / "train_torchrun.sh", "-n", "2", "tiny.yaml")
    assert done.returncode == 0, done.stderr
    trained(folder / "run")
    assert done.stdout.count("Run directory") == 1  # rank 0 alone reports


def test_torch_distributed_launch(folder: Path) -> None:
    script = SCRIPTS / "train_torch_distributed_launch.sh"
    done = run_command(folder, script, "--processes", "2", "tiny.yaml")
    assert done.returncode == 0, done.stderr
    trained(folder / "run")


def test_two_nodes_meet_and_train_one_run(folder: Path) -> None:
    words = ["--nodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}", "--address", "127.0.0.1"]
    nodes = [
        subprocess.Popen(
            [SCRIPTS / "train_multinode.sh", *words, "-n", "1", "tiny.yaml"],
            cwd=folder,
            env=command_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    errors = [node.communicate(timeout=200)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], errors
    trained(folder / "run")


SRUN = """#!/usr/bin/env bash
# Stands in for Slurm: two tasks of one node, with the variables that Slurm gives them.
shift  # --kill-on-bad-exit=1
for rank in 0 1; do
  SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 \\
    SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" &
  tasks[rank]=$!
done
worst=0
for task in "${tasks[@]}"; do
  wait "$task" || { code=$?; ((code > worst)) && worst=$code; }
done
exit "$worst"
"""
SIGNALLED_SRUN = """#!/usr/bin/env bash
# Stands in for the end of the time: tasks that saved a checkpoint and ended.
exit 75
"""
SCONTROL = """#!/usr/bin/env bash
echo "$@" > scontrol.txt
"""


def slurm(folder: Path, srun: str) -> subprocess.CompletedProcess[str]:
    tools = folder / "tools"
    tools.mkdir()
    for name, text in (("srun", srun), ("scontrol", SCONTROL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return run_command(
        folder,
        "bash",
        SCRIPTS / "train_slurm.sbatch",
        "tiny.yaml",
        "run_dir=by-slurm",
        PATH=f"{tools}{os.pathsep}{os.environ['PATH']}",
        SLURM_JOB_ID="7",
        SLURM_NTASKS="2",
        SLURM_NTASKS_PER_NODE="2",
        SLURM_JOB_NODELIST="127.0.0.1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
    )


def test_slurm_tasks_find_each_other(folder: Path) -> None:
    done = slurm(folder, SRUN)
    assert done.returncode == 0, done.stderr
    trained(folder / "by-slurm")
    assert not (folder / "scontrol.txt").exists()


def test_a_stopped_slurm_job_is_queued_again(folder: Path) -> None:
    assert slurm(folder, SIGNALLED_SRUN).returncode == 75
    assert (folder / "scontrol.txt").read_text().split() == ["requeue", "7"]


@pytest.mark.parametrize("name", ALL)
def test_syntax_and_help(name: str, folder: Path) -> None:
    assert run_command(folder, "bash", "-n", SCRIPTS / name).returncode == 0
    told = run_command(folder, "bash", SCRIPTS / name, "--help")
    assert told.returncode == 0
    assert told.stdout.startswith("Usage: ")


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize(
    "words", [[], ["nowhere.yaml"], ["--no-such"], ["-n"], ["-n", "zero", "tiny.yaml"]]
)
def test_bad_arguments_are_told_apart_and_start_nothing(
    name: str, words: list[str], folder: Path
) -> None:
    required = ["--nodes", "2", "--rendezvous", "127.0.0.1:1"] if "multinode" in name else []
    done = run_command(folder, SCRIPTS / name, *required, *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{name}: ")
    assert not (folder / "run").exists()


def test_slurm_script_outside_slurm(folder: Path) -> None:
    done = run_command(folder, "bash", SCRIPTS / "train_slurm.sbatch", "tiny.yaml")
    assert done.returncode == 2
    assert "sbatch" in done.stderr
