"""Watching over ranks with torch's elastic agent, used as a library.

It brings the ranks together, hosts the store where they meet, and sees how they end. It is asked
for no restarts: whether and how to go on after a failure is decided by `policy`, which knows more
than an exit code.
"""

from __future__ import annotations

import functools
import logging
import signal
import sys
import tempfile
import uuid
from subprocess import Popen
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous

from drumline.launch.policy import RankEnd
from drumline.launch.ranks import Ranks

LOOPBACK = "127.0.0.1"
_POLL_S = 0.1
_STARTER = "get_subprocess_handler"


def watch_over(ranks: Ranks) -> list[RankEnd]:
    """Bring ranks that wait together; how each ended, once all have."""
    for name in ("torch.distributed.elastic", "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="drumline-") as scratch:
        agent = _Agent(_spec(ranks.count), DefaultLogsSpecs(log_dir=scratch), ranks)
        try:
            result = agent.run()
        finally:
            agent.rendezvous.shutdown()
    return _ends(result, agent.failed_first, ranks.count)


def _spec(count: int) -> WorkerSpec:
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"{LOOPBACK}:0",  # the system chooses the port
        run_id=uuid.uuid4().hex,
        min_nodes=1,
        max_nodes=1,
        local_addr=LOOPBACK,
        is_host=True,
    )
    return WorkerSpec(
        role="rank",
        local_world_size=count,
        entrypoint=sys.executable,
        rdzv_handler=rendezvous.get_rendezvous_handler(parameters),
        max_restarts=0,
        monitor_interval=_POLL_S,
        local_addr=LOOPBACK,
    )


class _Agent(LocalElasticAgent):
    """Torch's agent, for ranks that have been started; without patience for those left over."""

    def __init__(self, spec: WorkerSpec, logs: DefaultLogsSpecs, ranks: Ranks) -> None:
        super().__init__(spec, logs, exit_barrier_timeout=5)
        self.rendezvous = spec.rdzv_handler
        self._ranks = ranks
        self.failed_first: set[int] = set()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        starter = getattr(api, _STARTER)
        setattr(api, _STARTER, functools.partial(_StartedRank, self._ranks))
        try:
            pids: dict[int, Any] = super()._start_workers(worker_group)
        finally:
            setattr(api, _STARTER, starter)
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


class _StartedRank(SubprocessHandler):
    """What the agent has of a rank's process: instead of starting one, it tells one that waits."""

    def __init__(self, ranks: Ranks, **given: Any) -> None:
        self._ranks = ranks
        super().__init__(**given)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Popen[Any]:
        del args
        return self._ranks.tell(int(env["RANK"]), env)


def _ends(result: RunResult, failed_first: set[int], size: int) -> list[RankEnd]:
    ends = []
    for rank in range(size):
        failure = result.failures.get(rank)
        code = failure.exitcode if failure else 0
        ends.append(RankEnd(rank, code, ended_by_us=bool(code) and rank not in failed_first))
    return ends
