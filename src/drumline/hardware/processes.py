"""Who owns the processes on a device.

Inside a container the driver may give process ids of the host, which this process cannot look up:
owner and name are then None, or, where the container has a process of the same id, wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil

from drumline.hardware.device import GpuProcess

# (owner, name) of a process id, each None where it cannot be seen.
Lookup = Callable[[int], tuple[str | None, str | None]]


def look_up(pid: int) -> tuple[str | None, str | None]:
    """Owner and name of a process of this machine."""
    try:
        process = psutil.Process(pid)
    except (psutil.Error, ValueError, OverflowError):
        return None, None
    return _try(process.username), _try(process.name)


def describe(
    held: Iterable[tuple[int, int | None]], lookup: Lookup = look_up
) -> tuple[GpuProcess, ...]:
    """Processes from (pid, memory in bytes) pairs, each pid once, with its largest memory."""
    memory: dict[int, int | None] = {}
    for pid, held_bytes in held:
        before = memory.get(pid)
        memory[pid] = held_bytes if before is None else max(before, held_bytes or 0)
    found = []
    for pid in sorted(memory):
        owner, name = lookup(pid)
        found.append(GpuProcess(pid, owner, memory[pid], name))
    return tuple(found)


def _try(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except (psutil.Error, KeyError):
        return None
