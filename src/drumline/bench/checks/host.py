"""Checks of the host: shared memory, limits, disk, ports, CPUs."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from drumline.bench.checks.check import CheckContext, ranks_in_words
from drumline.bench.checks.finding import Finding, failed, passed, warned
from drumline.config.environment import DEFAULT_PORT
from drumline.planning.availability import gib

GIB, MIB = 2**30, 2**20
SHM_ENOUGH_BYTES = GIB
SHM_TOO_LITTLE_BYTES = 32 * MIB
FILES_ENOUGH = 4096
DISK_ENOUGH_BYTES = 10 * GIB
DISK_TOO_LITTLE_BYTES = GIB
WRITE_ENOUGH_MB_S = 100.0
_BLOCK_BYTES = 4 * MIB


def shared_memory(context: CheckContext) -> Sequence[Finding]:
    """Data loader processes and NCCL hand over data in /dev/shm; containers often have 64 MB."""
    total, free = context.machine.host.shm_total_bytes, context.machine.host.shm_free_bytes
    name = "/dev/shm"
    if total is None or free is None:
        return [failed(name, "not there", "Mount a tmpfs at /dev/shm.")]
    text, value = f"{gib(free)} free of {gib(total)}", {"total_bytes": total, "free_bytes": free}
    remedy = "Start the container with --shm-size=8g (or --ipc=host), or enlarge the tmpfs."
    if free < SHM_TOO_LITTLE_BYTES:
        return [failed(name, f"{text}; {gib(SHM_TOO_LITTLE_BYTES)} are needed", remedy, value)]
    if free < SHM_ENOUGH_BYTES:
        return [warned(name, f"{text}; loader processes want {gib(GIB)}", remedy, value)]
    return [passed(name, text, value)]


def locked_memory(
    context: CheckContext, infiniband: Path = Path("/sys/class/infiniband")
) -> Sequence[Finding]:
    """RDMA needs to lock memory; CUDA's pinned memory is not counted against the limit."""
    limit, name = context.machine.host.limit_locked_memory_bytes, "locked memory"
    adapters = sorted(path.name for path in infiniband.iterdir()) if infiniband.is_dir() else []
    shown = limit if isinstance(limit, str) else "n/a" if limit is None else gib(limit)
    if adapters and isinstance(limit, int):
        text = f"limit {shown}, and InfiniBand ({', '.join(adapters)}) needs to lock memory"
        return [warned(name, text, "ulimit -l unlimited (or --ulimit memlock=-1).", limit)]
    no_rdma = "" if adapters else "; no InfiniBand here that would need more"
    return [passed(name, f"limit {shown}{no_rdma}", limit)]


def open_files(context: CheckContext) -> Sequence[Finding]:
    """Each tensor that a loader process hands over is an open file."""
    limit, name = context.machine.host.limit_open_files, "open files"
    if isinstance(limit, int) and limit < FILES_ENOUGH:
        text = f"limit {limit:,}; loader processes may need {FILES_ENOUGH:,}"
        return [warned(name, text, f"ulimit -n {max(65536, FILES_ENOUGH)}", limit)]
    shown = f"{limit:,}" if isinstance(limit, int) else limit or "n/a"
    return [passed(name, f"limit {shown}", limit)]


def disk(context: CheckContext) -> Sequence[Finding]:
    """Free space and write speed where runs are written, for checkpoints."""
    folder, name = _existing(context.folder), "disk"
    free = shutil.disk_usage(folder).free
    size = (64 if context.quick else 256) * MIB
    if free < DISK_TOO_LITTLE_BYTES:
        text = f"{gib(free)} free in {folder}"
        return [failed(name, text, "Free space, or choose another runs_dir.", {"free_bytes": free})]
    try:
        speed = write_speed_mb_s(folder, size)
    except OSError as error:
        text = f"{folder} cannot be written: {error.strerror or error}"
        return [failed(name, text, "Choose another runs_dir.", {"free_bytes": free})]
    text = f"{gib(free)} free in {folder}, written at {speed:,.0f} MB/s with fsync"
    value = {"free_bytes": free, "write_mb_s": round(speed, 1), "folder": str(folder)}
    if free < DISK_ENOUGH_BYTES:
        return [warned(name, text, "Checkpoints may fill it: free space.", value)]
    if speed < WRITE_ENOUGH_MB_S:
        return [warned(name, text, "Checkpoints will be slow: use a local disk.", value)]
    return [passed(name, text, value)]


def write_speed_mb_s(folder: Path, size_bytes: int) -> float:
    """Rate in 10^6 bytes/s of writing a file that is then forced to disk; the file is removed.

    Raises:
        OSError: If it cannot be written.
    """
    block = os.urandom(_BLOCK_BYTES)  # so that no file system compresses it
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        for _ in range(size_bytes // _BLOCK_BYTES):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - start
    return size_bytes / seconds / 1e6


def ports(context: CheckContext, bind: Callable[[int], None] | None = None) -> Sequence[Finding]:
    """A run on one machine lets the system choose its port; several nodes agree on one."""
    del context
    take, name = bind or _bind, "ports"
    try:
        take(0)
    except OSError as error:
        text = f"no port can be opened on 127.0.0.1: {error.strerror or error}"
        return [failed(name, text, "Allow loopback connections; ranks meet there.")]
    try:
        take(DEFAULT_PORT)
    except OSError:
        text = f"port {DEFAULT_PORT}, the default of torchrun and Slurm, is taken"
        remedy = "drumline train chooses another; for several nodes set --master-port."
        return [warned(name, text, remedy, {"default_port_free": False})]
    text = f"a free port is found, and {DEFAULT_PORT} is free"
    return [passed(name, text, {"default_port_free": True})]


def cpus(context: CheckContext) -> Sequence[Finding]:
    """Each rank is a busy process, and its loaders want cores beside it."""
    usable, ranks, name = context.machine.host.cpu_usable, len(context.devices), "CPUs"
    if usable is None:
        return [passed(name, "the number of usable CPUs is not reported")]
    text = f"{usable} CPUs for {ranks_in_words(context, ranks)}"
    value = {"usable": usable, "ranks": ranks}
    wanted = ranks if context.on_cpu else 2 * ranks
    if usable < wanted:
        remedy = f"Give this process {wanted} CPUs, or train on fewer devices."
        return [warned(name, f"{text}; {wanted} are wanted", remedy, value)]
    return [passed(name, text, value)]


def _bind(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists: a check creates none."""
    resolved = folder.absolute()
    return next(path for path in (resolved, *resolved.parents) if path.is_dir())
