"""Whatever is killed, lost or doubled, in whatever order: no device is used by two, no training is
lost, none ends twice.

Agents, supervisors, databases and the broker are real; what the supervisors start is a quick
stand-in.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
import redis
import sqlalchemy as sa
from cut_line import CutLine
from kombu import Exchange
from service_runs import Service
from support import PROGRAMS, Running, started, until

from drumline.config.environment import MARK
from drumline.database import DatabaseError
from drumline.jobs import wakeups
from drumline.jobs.errors import WrongState
from drumline.jobs.leases import Leases
from drumline.jobs.states import ENDED, State
from drumline.jobs.training import Training
from service_databases import redis_database

REDIS = redis_database(5)
ROUNDS = 30
HOSTS_AGENTS = 2
MANY = 1_000


class Disturbed:
    """A service to which random things happen."""

    def __init__(self, service: Service, seed: int, stack: ExitStack) -> None:
        self.service, self.random, self.stack = service, random.Random(seed), stack
        server = sa.make_url(REDIS)
        self.line = stack.enter_context(CutLine(str(server.host), server.port or 6379))
        self.broker = f"redis://127.0.0.1:{self.line.port}/{server.database}"
        self.app = wakeups.make_app(REDIS)
        self.agents: list[Running] = []
        self.ids: list[str] = []
        self.cancelled: set[str] = set()
        self.ended: dict[str, Training] = {}
        self._count = 0
        self._leases = Leases(service.database)
        for _ in range(HOSTS_AGENTS):
            self.start_agent()

    def start_agent(self) -> None:
        self._count += 1
        folder = self.service.folder / f"agent-{self._count}"
        command = [PROGRAMS / "quick_agent.py"]
        environment = self.service.environment(
            DRUMLINE_LEASE_S="2",
            DRUMLINE_STOP_GRACE_S="3",
            DRUMLINE_POLL_S="0.5",
            DRUMLINE_BROKER_URL=self.broker,
        )
        self.agents.append(self.stack.enter_context(started(command, folder, **environment)))

    def queue(self) -> None:
        gpus = self.random.choice([0, 1, 1, 2, 4])
        self.ids.append(self.service.queue(gpus=gpus, max_attempts=MANY))

    def cancel(self) -> None:
        if self.ids and self.random.random() < 0.5:
            one = self.random.choice(self.ids)
            with suppress(WrongState):
                self.service.trainings.cancel(one)
                self.cancelled.add(one)

    def kill_agent(self) -> None:
        if self.agents:
            agent = self.agents.pop(self.random.randrange(len(self.agents)))
            agent.signal(signal.SIGKILL)
            agent.finish()

    def agent_again(self) -> None:
        if len(self.agents) < HOSTS_AGENTS:
            self.start_agent()

    def kill_supervisor(self) -> None:
        self._kill_one([p for p in psutil.process_iter() if self._is_ours(p, "supervisor")])

    def kill_part(self) -> None:
        """A supervisor, a launcher or a rank."""
        self._kill_one([p for p in psutil.process_iter() if self._is_ours(p)])

    def _kill_one(self, parts: list[psutil.Process]) -> None:
        if parts:
            with suppress(psutil.Error):
                self.random.choice(parts).kill()

    def double_messages(self) -> None:
        """The same messages several times, and some that are not due."""
        names = [wakeups.WAKE, wakeups.SWEEP, wakeups.HOST_HEARTBEAT, wakeups.CLEAN_UP]
        for name in self.random.choices(names, k=10):
            self.app.send_task(name, declare=[Exchange(wakeups.ALL, type="fanout")])

    def lose_messages(self) -> None:
        """The broker goes away, or comes back."""
        if self.random.random() < 0.5:
            self.line.cut()
        else:
            self.line.mend()

    def break_connections(self) -> None:
        """On PostgreSQL: every connection, in the middle of whatever it does."""
        if self.service.database.is_sqlite:
            return
        kill = sa.text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid != pg_backend_pid()"
        )
        own = sa.create_engine(self.service.url)
        with own.connect() as connection:
            connection.execute(kill)
        own.dispose()

    def check(self) -> None:
        """What holds after each step."""
        violations = self.service.folder / "runs" / "violations"
        assert not violations.exists(), violations.read_text()
        for one in self.ids:
            now = self.patiently(lambda one=one: self.service.training(one))
            if one in self.ended:
                before = self.ended[one]
                assert (now.state, now.ended_ms) == (before.state, before.ended_ms)
            elif now.state in ENDED:
                self.ended[one] = now

    def patiently(self, read: Callable[[], Training]) -> Training:
        """This process's own connections are broken, too."""
        with suppress(DatabaseError):
            return read()
        return read()

    def settle(self) -> None:
        """Leave it alone until all has ended."""
        self.agent_again()
        self.agent_again()
        until(
            "all trainings to end",
            lambda: all(self.service.training(one).state in ENDED for one in self.ids),
        )
        until("all devices to be given back", lambda: not self._leases.held())
        until("the end of all processes", lambda: not any(map(self.service.processes, self.ids)))

    def _is_ours(self, process: psutil.Process, kind: str = "") -> bool:
        try:
            mark, command = process.environ().get(MARK, ""), process.cmdline()
        except (psutil.Error, OSError):
            return False
        of_kind = not kind or kind in command
        return of_kind and mark.partition("/")[0] in self.ids and process.pid != os.getpid()


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_doubled_or_lost(
    database_url: str, tmp_path: Path, activations: Path, seed: int
) -> None:
    service = Service(database_url, tmp_path, activations)
    with ExitStack() as stack:
        disturbed = Disturbed(service, seed, stack)
        for _ in range(4):
            disturbed.queue()
        until("a training that runs", lambda: any(map(service.processes, disturbed.ids)))
        steps = [
            disturbed.queue,
            disturbed.queue,
            disturbed.kill_part,
            disturbed.kill_supervisor,
            disturbed.cancel,
            disturbed.kill_agent,
            disturbed.agent_again,
            disturbed.agent_again,
            disturbed.break_connections,
            disturbed.double_messages,
            disturbed.lose_messages,
        ]
        for _ in range(ROUNDS):
            disturbed.random.choice(steps)()
            until_next(disturbed.random.uniform(0, 0.6))
            disturbed.check()
        disturbed.settle()
        disturbed.check()
        for one in disturbed.ids:
            training = service.training(one)
            causes = [attempt.exit_cause for attempt in service.trainings.attempts(one)]
            assert causes.count("done") == (training.state is State.SUCCEEDED), causes
            assert training.state is State.SUCCEEDED or one in disturbed.cancelled
    service.clear()
    client = redis.Redis.from_url(REDIS)
    for key in client.scan_iter(match="drumline:*"):
        client.delete(key)


def until_next(pause_s: float) -> None:
    """Let things happen; nothing is waited for, any state will do."""
    time.sleep(pause_s)
