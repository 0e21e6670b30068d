"""Facts of the host, through psutil and the kernel: CPUs, memory, /dev/shm, limits, versions."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

Limit = int | Literal["unlimited"] | None


@dataclass(frozen=True)
class Host:
    """One host. `cpu_usable` counts the logical CPUs this process may run on. Limits are the soft
    ones of this process. Versions are of what is installed, None where it is not.
    """

    hostname: str
    cpu_model: str | None = None
    cpu_physical: int | None = None
    cpu_logical: int | None = None
    cpu_usable: int | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    limit_open_files: Limit = None
    limit_locked_memory_bytes: Limit = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    torch_version: str | None = None
    nccl_version: str | None = None
    problems: tuple[str, ...] = ()


def probe_host(
    *,
    driver_version: str | None = None,
    cuda_driver_version: str | None = None,
    cpuinfo: Path = Path("/proc/cpuinfo"),
    shm: Path = Path("/dev/shm"),
) -> Host:
    """Read the host now. The driver's versions come from the device provider."""
    memory = psutil.virtual_memory()
    shm_total, shm_free = _disk(shm)
    problems = () if shm_total else (f"{shm} is not there; data loader processes need it.",)
    return Host(
        hostname=socket.gethostname(),
        cpu_model=_cpu_model(cpuinfo),
        cpu_physical=psutil.cpu_count(logical=False),
        cpu_logical=psutil.cpu_count(),
        cpu_usable=_usable_cpus(),
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
        limit_open_files=_limit(resource.RLIMIT_NOFILE),
        limit_locked_memory_bytes=_limit(getattr(resource, "RLIMIT_MEMLOCK", None)),
        driver_version=driver_version,
        cuda_driver_version=cuda_driver_version,
        torch_version=_installed("torch"),
        nccl_version=_installed("nvidia-nccl-cu13") or _installed("nvidia-nccl-cu12"),
        problems=problems,
    )


def _cpu_model(cpuinfo: Path) -> str | None:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or None


def _usable_cpus() -> int | None:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else None


def _disk(path: Path) -> tuple[int | None, int | None]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None, None
    return usage.total, usage.free


def _limit(kind: int | None) -> Limit:
    if kind is None:
        return None
    try:
        soft, _ = resource.getrlimit(kind)
    except (OSError, ValueError):
        return None
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
