"""One attempt: all ranks of this machine through torch's elastic agent, used as a library.

The agent runs in a thread of its own, so the launcher's main thread is free to show progress and
to take signals. It is asked for no restarts: whether and how to go on after a failure is decided
by `policy`, which knows more than an exit code.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous

from drumline.errors import LaunchError
from drumline.launch.policy import RankEnd

LOOPBACK = "127.0.0.1"
_POLL_S = 0.1


class Attempt:
    """All ranks of one attempt on this machine.

    Args:
        arguments: What every rank executes, after the Python interpreter.
        world_size: How many ranks.
        environment: Variables for every rank, over those of this process.
    """

    def __init__(self, arguments: list[str], world_size: int, environment: dict[str, str]) -> None:
        self._arguments, self._size, self._environment = arguments, world_size, environment
        self._agent: _Agent | None = None
        self._ends: list[RankEnd] | None = None
        self._error: BaseException | None = None

    def run(self, watch: Callable[[], None]) -> list[RankEnd]:
        """Start the ranks and wait until all have ended, calling `watch` about ten times a second.

        Raises:
            LaunchError: If the ranks could not be started.
        """
        for name in ("torch.distributed.elastic", "torch.distributed.run"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        thread = threading.Thread(target=self._run, name="elastic-agent")
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_S)
            watch()
        if self._ends is None:
            raise LaunchError(
                f"The ranks could not be started: {self._error}", remedy="See the message above."
            ) from self._error
        return self._ends

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank (not to the processes they have started)."""
        for pid in self._pids().values():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        """End every rank and all it has started, at once."""
        for pid in self._pids().values():
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _pids(self) -> dict[int, int]:
        return self._agent.pids() if self._agent else {}

    def _run(self) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="drumline-") as scratch:
                result, failed_first = self._with_agent(scratch)
            self._ends = _ends(result, failed_first, self._size)
        except BaseException as error:  # reported by `run` in the main thread
            self._error = error

    def _with_agent(self, scratch: str) -> tuple[RunResult, set[int]]:
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=f"{LOOPBACK}:0",  # the system chooses the port
            run_id=uuid.uuid4().hex,
            min_nodes=1,
            max_nodes=1,
            local_addr=LOOPBACK,
            is_host=True,
        )
        spec = WorkerSpec(
            role="rank",
            local_world_size=self._size,
            entrypoint=sys.executable,
            args=tuple(self._arguments),
            rdzv_handler=rendezvous.get_rendezvous_handler(parameters),
            max_restarts=0,
            monitor_interval=_POLL_S,
            local_addr=LOOPBACK,
        )
        self._agent = _Agent(spec, DefaultLogsSpecs(log_dir=scratch), self._environment)
        try:
            return self._agent.run(), self._agent.failed_first
        finally:
            spec.rdzv_handler.shutdown()


class _Agent(LocalElasticAgent):
    """Torch's agent, with our variables for the ranks, and no patience with those left over."""

    def __init__(
        self, spec: WorkerSpec, logs: DefaultLogsSpecs, environment: dict[str, str]
    ) -> None:
        super().__init__(spec, logs, exit_barrier_timeout=5)
        self._environment = environment
        self.failed_first: set[int] = set()

    def pids(self) -> dict[int, int]:
        """Process ids by local rank."""
        return self._pcontext.pids() if self._pcontext else {}

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        before = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)  # the agent passes on its own environment
        try:
            pids: dict[int, Any] = super()._start_workers(worker_group)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        # When one rank fails, torch asks the others politely and waits 30 s. They hang in a
        # collective with the dead one and have nothing left to save, so they are ended at once.
        if self._pcontext is not None:
            self._pcontext.close = functools.partial(  # type: ignore[method-assign]
                self._close_at_once, self._pcontext
            )
        return pids

    def _close_at_once(
        self, context: PContext, death_sig: signal.Signals | None = None, timeout: int = 10
    ) -> None:
        del death_sig
        if not self.failed_first:  # who failed by itself, before the others are ended
            self.failed_first = set(getattr(context, "_failures", {}))
        type(context).close(context, signal.SIGKILL, timeout)


def _ends(result: RunResult, failed_first: set[int], size: int) -> list[RankEnd]:
    ends = []
    for rank in range(size):
        failure = result.failures.get(rank)
        code = failure.exitcode if failure else 0
        ends.append(RankEnd(rank, code, ended_by_us=bool(code) and rank not in failed_first))
    return ends
