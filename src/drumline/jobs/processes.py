"""All processes of one attempt, however they were started, and their end.

A training's ranks lead sessions of their own, so no process group holds them all. Each process of
an attempt carries a mark in its environment, which children inherit; with the descendants of those
that carry it, also of ones that dropped it, they are the attempt's processes. The supervisor
adopts orphans (`adopt_orphans`), so that what forks twice stays its descendant.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

from drumline.config.environment import MARK

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended (Linux)."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def started_at(pid: int) -> float | None:
    """When a process started, in a measure that no change of the clock moves; None if it is gone.

    With the process id it names one process of this boot.
    """
    try:
        # After the name, which may hold anything, the 20th field: ticks since boot.
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        pass
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def is_running(pid: int, started: float | None) -> bool:
    """Whether the very process that was seen with this start time still runs."""
    try:
        ended = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    return not ended and (started is None or started_at(pid) == started)


def members(mark: str, besides: Collection[int] = ()) -> list[psutil.Process]:
    """The live processes of an attempt, without `besides`: those marked, and all below them."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if process.pid in found or not _is_marked(process, mark):
            continue
        found[process.pid] = process
        with suppress(psutil.Error):
            found |= {child.pid: child for child in process.children(recursive=True)}
    return [p for pid, p in found.items() if pid not in besides and _lives(p)]


def end_all(mark: str, *, besides: Collection[int] = (), within_s: float = 10.0) -> bool:
    """Kill all processes of an attempt until none is left; whether that was reached in time.

    One in an uninterruptible call of a driver may take longer than that: ask again.
    """
    deadline = time.monotonic() + within_s
    while True:
        left = members(mark, besides)
        if not left:
            return True
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)


def let_save(mark: str, within_s: float) -> None:
    """Give an attempt that has lost its supervisor time to save: SIGTERM to its launcher, which
    has the ranks stop at the next step. Returns when it has ended, or the time is over.
    """
    there = members(mark)
    own = {process.pid for process in there}
    launchers = []
    for process in there:
        with suppress(psutil.Error):
            if process.ppid() not in own:  # a signal to the ranks' loaders would break them
                process.send_signal(signal.SIGTERM)
                launchers.append(process)
    deadline = time.monotonic() + within_s
    while any(map(_lives, launchers)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def reap(besides: Collection[int] = ()) -> None:
    """Take note of children that have ended, but for `besides`, whose exit codes others want."""
    for child in psutil.Process().children():
        with suppress(psutil.Error, ChildProcessError):
            if child.pid not in besides and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (psutil.Error, OSError):
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
