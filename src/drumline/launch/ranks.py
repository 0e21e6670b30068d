"""The processes of an attempt, started before torch's elastic agent is there.

Importing torch takes seconds, in the launcher as in every rank. So ranks are started first and
import it while the launcher does. Then they wait, on their standard input, for what only the agent
can tell them: where the others are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress

from drumline.errors import LaunchError

_LAST_WAIT_S = 10.0


class Ranks:
    """All ranks of one attempt on this machine, each the head of a process group of its own.

    Args:
        arguments: What every rank executes, after the Python interpreter.
        count: How many.
        environment: Variables for every rank, over those of this process and of the agent.

    Raises:
        LaunchError: If one could not be started; none is left then.
    """

    def __init__(
        self, arguments: Sequence[str], count: int, environment: Mapping[str, str]
    ) -> None:
        self.count = count
        self._environment = environment
        self._processes: list[subprocess.Popen[str]] = []
        self._at_exit = weakref.finalize(self, _end, self._processes)
        try:
            for rank in range(count):
                self._processes.append(self._start(arguments, rank))
        except OSError as error:
            self.end()
            raise LaunchError(
                f"Rank {len(self._processes)} could not be started: {error}",
                remedy="See the limits on processes and memory: ulimit -a.",
            ) from error

    def tell(self, rank: int, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Let a rank go on, with these variables; its process. One that has ended is not told."""
        process = self._processes[rank]
        assert process.stdin is not None, "ranks wait on their standard input"
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps({**environment, **self._environment}) + "\n")
            process.stdin.close()
        return process

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank (not to the processes they have started)."""
        for process in self._processes:
            process.send_signal(number)

    def kill(self) -> None:
        """End every rank and all it has started, at once."""
        for process in self._processes:
            _kill_group(process)

    def end(self) -> None:
        """Leave none behind that has not ended yet."""
        self._at_exit()

    def _start(self, arguments: Sequence[str], rank: int) -> subprocess.Popen[str]:
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.count)}
        return subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **self._environment, **place},
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    left = [process for process in processes if process.poll() is None]
    for process in left:
        _kill_group(process)
    for process in left:
        with suppress(subprocess.TimeoutExpired):  # one that hangs in a driver's call
            process.wait(_LAST_WAIT_S)
    for process in processes:
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()


def _kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def await_rendezvous() -> None:
    """In a rank: wait for the variables that the launcher tells, and take them.

    Raises:
        SystemExit: If the launcher has ended before.
    """
    told = sys.stdin.readline()
    if not told:
        raise SystemExit(1)
    os.environ.update(json.loads(told))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
