"""The world that somebody else made: what torchrun, our launcher, Slurm or mpirun say of it.

This is the one place (with `launch`) that reads environment variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from drumline.errors import BadInput

RUN_DIR = "DRUMLINE_RUN_DIR"
ATTEMPT = "DRUMLINE_ATTEMPT"
PLAN_DEVICES = "DRUMLINE_DEVICES"
OVERRIDES = "DRUMLINE_OVERRIDES"
DEVICE_LOCKS = "DRUMLINE_DEVICE_LOCKS"
LOCK_FOLDER = "DRUMLINE_LOCK_FOLDER"
CACHE_FOLDER = "DRUMLINE_CACHE_DIR"
MARK = "DRUMLINE_ATTEMPT_MARK"
"""Carried by all processes of a training that the service runs."""
DEFAULT_PORT = 29500
COMMUNICATION_PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_", "GLOO_", "TP_")


def only_these(names: Collection[str]) -> dict[str, str]:
    """Of this process's environment variables those named, and those that say where Python finds
    its packages and Drumline its cache: what a process gets that is to know no more.
    """
    wanted = {*names, "PYTHONPATH", "VIRTUAL_ENV", CACHE_FOLDER, "XDG_CACHE_HOME"}
    return {name: value for name, value in os.environ.items() if name in wanted}


@dataclass(frozen=True)
class ClusterEnvironment:
    """Who this process is among all ranks of an attempt.

    `kind` says who started it: "alone", "drumline", "torchrun", "slurm" or "mpirun". `overrides`
    are what our launcher changes in the config after a failure: a smaller micro-batch, say.
    """

    kind: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int
    run_dir: Path | None = None
    attempt: int = 0
    devices: str | None = None
    overrides: tuple[str, ...] = ()

    @property
    def is_alone(self) -> bool:
        """Whether nobody made a world: one process, started by hand."""
        return self.kind == "alone"

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> ClusterEnvironment:
        """Read the environment variables of whoever started this process.

        Raises:
            BadInput: If the variables are there but do not fit together.
        """
        env = os.environ if environ is None else environ
        if "RANK" in env and "WORLD_SIZE" in env:
            return cls._torchrun(env)
        if "SLURM_PROCID" in env and _int(env, "SLURM_STEP_NUM_TASKS", 1) > 1:
            return cls._slurm(env)
        if "OMPI_COMM_WORLD_RANK" in env:
            return cls._mpirun(env)
        return cls("alone", 0, 1, 0, 1, "127.0.0.1", 0, _run_dir(env))

    @classmethod
    def _torchrun(cls, env: Mapping[str, str]) -> ClusterEnvironment:
        rank, size = _place(env, "RANK", "WORLD_SIZE")
        return cls(
            "drumline" if ATTEMPT in env else "torchrun",
            rank,
            size,
            _int(env, "LOCAL_RANK", rank),
            _int(env, "LOCAL_WORLD_SIZE", size),
            env.get("MASTER_ADDR", "127.0.0.1"),
            _int(env, "MASTER_PORT", DEFAULT_PORT),
            _run_dir(env),
            _int(env, ATTEMPT, _int(env, "TORCHELASTIC_RESTART_COUNT", 0)),
            env.get(PLAN_DEVICES),
            tuple(env.get(OVERRIDES, "").split()),
        )

    @classmethod
    def _slurm(cls, env: Mapping[str, str]) -> ClusterEnvironment:
        rank, size = _place(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
        port = DEFAULT_PORT + _int(env, "SLURM_JOB_ID", 0) % 10_000
        per_node = re.match(r"\d+", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        return cls(
            "slurm",
            rank,
            size,
            _int(env, "SLURM_LOCALID", 0),
            int(per_node.group()) if per_node else size,
            env.get("MASTER_ADDR") or _first_host(env.get("SLURM_JOB_NODELIST", "127.0.0.1")),
            _int(env, "MASTER_PORT", port),
            _run_dir(env),
            _int(env, "SLURM_RESTART_COUNT", 0),
        )

    @classmethod
    def _mpirun(cls, env: Mapping[str, str]) -> ClusterEnvironment:
        rank, size = _place(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        local_size = _int(env, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
        if local_size < size and "MASTER_ADDR" not in env:
            raise BadInput(
                f"mpirun spread {size} ranks over several machines, and MASTER_ADDR is not set.",
                remedy="Add: mpirun -x MASTER_ADDR=<the first machine> ...",
            )
        return cls(
            "mpirun",
            rank,
            size,
            _int(env, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
            local_size,
            env.get("MASTER_ADDR", "127.0.0.1"),
            _int(env, "MASTER_PORT", DEFAULT_PORT),
            _run_dir(env),
        )


def visible_devices_setting(
    environ: Mapping[str, str] | None = None,
) -> tuple[str | None, str | None]:
    """The values of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER; None where not set."""
    env = os.environ if environ is None else environ
    return env.get("CUDA_VISIBLE_DEVICES"), env.get("CUDA_DEVICE_ORDER")


def device_lock_paths(environ: Mapping[str, str] | None = None) -> list[str]:
    """The lock files of the devices that our launcher holds for its ranks."""
    env = os.environ if environ is None else environ
    return [path for path in env.get(DEVICE_LOCKS, "").split(os.pathsep) if path]


def lock_folder_setting(environ: Mapping[str, str] | None = None) -> str | None:
    """Where lock files of devices are kept, if the user says so: containers that share devices
    need to share a folder.
    """
    return (os.environ if environ is None else environ).get(LOCK_FOLDER) or None


def cache_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """Where this user keeps what can be made again: the folder set, or the one for Drumline among
    the user's caches; None where the user has no home. It need not be there.
    """
    env = os.environ if environ is None else environ
    if setting := env.get(CACHE_FOLDER):
        return Path(setting)
    caches = Path(env.get("XDG_CACHE_HOME", ""))
    if not caches.is_absolute():  # as the XDG specification says of relative ones
        if not env.get("HOME"):
            return None
        caches = Path(env["HOME"]) / ".cache"
    return caches / "drumline"


def has_service(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this machine has a service that a run started by hand is to be entered in: one is
    named, or has been started here. What the service itself runs is there already.
    """
    env = os.environ if environ is None else environ
    if MARK in env:
        return False
    home = Path(env.get("DRUMLINE_HOME") or "~/.drumline").expanduser()
    return bool(env.get("DRUMLINE_DATABASE_URL")) or (home / "drumline.db").is_file()


def communication_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that steer NCCL, gloo and what is above them, as they are; they are passed on to
    the ranks untouched.
    """
    env = os.environ if environ is None else environ
    return {name: env[name] for name in sorted(env) if name.startswith(COMMUNICATION_PREFIXES)}


def _run_dir(env: Mapping[str, str]) -> Path | None:
    return Path(env[RUN_DIR]) if env.get(RUN_DIR) else None


def _int(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise BadInput(
            f"The environment variable {name} is {text!r}, not a number.",
            remedy="Check the launcher.",
        ) from None


def _place(env: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    rank, size = _int(env, rank_name), _int(env, size_name)
    if not 0 <= rank < size:
        raise BadInput(
            f"{rank_name}={rank} does not fit {size_name}={size}.", remedy="Check the launcher."
        )
    return rank, size


def _first_host(nodes: str) -> str:
    """The first host of a Slurm node list: "gpu[03-05,9]-ib,cpu1" gives "gpu03-ib"."""
    first = re.match(r"(?:[^\[\],]|\[[^\]]*\])+", nodes)
    if first is None:
        return "127.0.0.1"
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first.group())
