"""Who started this process, read from the variables that launchers set."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.config import ClusterEnvironment
from drumline.config.environment import cache_folder
from drumline.errors import BadInput

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "1234",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_JOB_ID": "120034",
    "SLURM_JOB_NODELIST": "gpu[03-05,9],cpu1",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "4321",
}


def test_nobody_made_a_world() -> None:
    env = ClusterEnvironment.detect({"HOME": "/root", "WORLD_SIZE": "4"})
    assert env.is_alone
    assert (env.rank, env.world_size, env.local_rank, env.run_dir) == (0, 1, 0, None)


def test_alone_may_still_be_told_the_run_directory() -> None:
    assert ClusterEnvironment.detect({"DRUMLINE_RUN_DIR": "runs/a"}).run_dir == Path("runs/a")
    assert ClusterEnvironment.detect({"DRUMLINE_RUN_DIR": ""}).run_dir is None


def test_torchrun() -> None:
    env = ClusterEnvironment.detect(TORCHRUN)
    assert env == ClusterEnvironment("torchrun", 5, 8, 1, 4, "node0", 1234, None, 2)
    assert not env.is_alone


def test_our_launcher_adds_run_directory_attempt_devices_and_overrides() -> None:
    env = ClusterEnvironment.detect(
        {
            **TORCHRUN,
            "DRUMLINE_RUN_DIR": "runs/a",
            "DRUMLINE_ATTEMPT": "1",
            "DRUMLINE_DEVICES": "cuda",
            "DRUMLINE_OVERRIDES": "micro_batch=4 distributed.timeout_s=20.0",
        }
    )
    assert (env.kind, env.attempt, env.devices) == ("drumline", 1, "cuda")
    assert env.run_dir == Path("runs/a")
    assert env.overrides == ("micro_batch=4", "distributed.timeout_s=20.0")


def test_torchrun_wins_over_the_slurm_job_it_runs_in() -> None:
    assert ClusterEnvironment.detect({**SLURM, **TORCHRUN}).kind == "torchrun"


def test_slurm() -> None:
    env = ClusterEnvironment.detect(SLURM)
    assert env == ClusterEnvironment("slurm", 3, 4, 1, 2, "gpu03", 29500 + 34)


def test_all_tasks_of_a_slurm_job_meet_at_one_place() -> None:
    places = {
        (env.master_addr, env.master_port)
        for rank in range(4)
        for env in [ClusterEnvironment.detect({**SLURM, "SLURM_PROCID": str(rank)})]
    }
    assert len(places) == 1


def test_a_slurm_job_of_one_task_is_alone() -> None:
    assert ClusterEnvironment.detect({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}).is_alone


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("host1", "host1"),
        ("host1,host2", "host1"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("gpu[7]", "gpu7"),
        ("gpu[1,3]-ib", "gpu1-ib"),
        ("rack[0-1]n[2-3]", "rack0n2"),
        ("a-b[10-12]", "a-b10"),
    ],
)
def test_the_first_host_of_a_slurm_node_list(nodes: str, first: str) -> None:
    assert ClusterEnvironment.detect({**SLURM, "SLURM_JOB_NODELIST": nodes}).master_addr == first


def test_mpirun() -> None:
    env = ClusterEnvironment.detect(MPIRUN)
    assert env == ClusterEnvironment("mpirun", 2, 3, 1, 2, "node7", 4321)


@pytest.mark.parametrize(
    ("base", "name", "value"),
    [
        (TORCHRUN, "RANK", "five"),
        (TORCHRUN, "RANK", ""),
        (TORCHRUN, "WORLD_SIZE", "4.0"),
        (TORCHRUN, "MASTER_PORT", "http"),
        (SLURM, "SLURM_STEP_NUM_TASKS", "4(x2)"),
        (SLURM, "SLURM_PROCID", "?"),
        (SLURM, "SLURM_JOB_ID", "abc"),
        (MPIRUN, "OMPI_COMM_WORLD_SIZE", "x"),
    ],
)
def test_a_malformed_variable_is_named_with_its_value(
    base: dict[str, str], name: str, value: str
) -> None:
    with pytest.raises(BadInput) as raised:
        ClusterEnvironment.detect({**base, name: value})
    assert name in raised.value.message
    assert repr(value) in raised.value.message


@pytest.mark.parametrize(
    ("base", "name", "value"),
    [
        (TORCHRUN, "RANK", "8"),
        (TORCHRUN, "RANK", "-1"),
        (SLURM, "SLURM_PROCID", "4"),
        (MPIRUN, "OMPI_COMM_WORLD_RANK", "3"),
    ],
)
def test_a_rank_outside_its_world_is_refused(base: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"{name}={value} does not fit"):
        ClusterEnvironment.detect({**base, name: value})


def test_by_default_the_variables_of_this_process_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert ClusterEnvironment.detect().rank == 5


def test_a_batch_script_outside_srun_is_alone() -> None:
    inside_sbatch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    assert ClusterEnvironment.detect(inside_sbatch).is_alone


def test_mpirun_over_machines_needs_an_address() -> None:
    env = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    with pytest.raises(BadInput, match="MASTER_ADDR"):
        ClusterEnvironment.detect(env)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.cache/drumline"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/scratch"}, "/scratch/drumline"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "scratch"}, "/home/ada/.cache/drumline"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/s", "DRUMLINE_CACHE_DIR": "/mine"}, "/mine"),
        ({"HOME": "/home/ada", "DRUMLINE_CACHE_DIR": ""}, "/home/ada/.cache/drumline"),
        ({}, None),
    ],
)
def test_the_cache_is_where_the_user_or_the_desktop_says(
    variables: dict[str, str], folder: str | None
) -> None:
    assert cache_folder(variables) == (None if folder is None else Path(folder))
