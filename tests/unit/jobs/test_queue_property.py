"""Whatever users, agents and supervisors do in whatever order, and whoever dies or comes late: no
device has two trainings, no training is lost or finishes twice, and only the present token writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from drumline.database.tables import attempts, gpu_leases, trainings
from drumline.hardware import Machine
from drumline.jobs.errors import LeaseLost, WrongState
from drumline.jobs.outcome import Ending
from drumline.jobs.reports import Batch, Value
from drumline.jobs.states import ACTIVE, ENDED, State
from queue_cases import LEASE_MS, Service, service_at
from service_databases import postgresql_database

MACHINES = {
    "one": Machine.probe(simulate="3xH100"),
    "two": Machine.probe(simulate="2xA100"),
}
GPUS = [device.uuid for machine in MACHINES.values() for device in machine.devices]
HOSTS = st.sampled_from(sorted(MACHINES))
ENDINGS = st.sampled_from(
    [
        Ending(State.SUCCEEDED, "done", "done", 0),
        Ending(State.FAILED, "failed", "failed", 1),
        Ending(State.QUEUED, "stopped", "stopped", 75),
    ]
)
PICK = st.integers(0, 10**6)


class Traffic(RuleBasedStateMachine):
    """What happens to a service. `open_service` gives each example an empty one."""

    open_service: Callable[[], Any]

    def __init__(self) -> None:
        super().__init__()
        self.context = self.open_service()
        self.service: Service = self.context.__enter__()
        for host, machine in MACHINES.items():
            self.service.add_host(machine, host)
        self.ids: list[str] = []
        self.alive: list[str] = []  # tokens of supervisors that beat
        self.dead: list[str] = []  # of those that do not, and may still say something late
        self.marked: list[int] = []  # attempts to be taken back, some of them twice
        self.succeeded: set[str] = set()
        self.cancelled: set[str] = set()  # and not asked for again since

    @initialize()
    def begin(self) -> None:
        self.create(1, 0, 2, -1)

    @rule(
        gpus=st.integers(1, 3),
        priority=st.integers(0, 1),
        max_attempts=st.integers(1, 3),
        named=st.integers(-3, len(GPUS) - 1),
    )
    def create(self, gpus: int, priority: int, max_attempts: int, named: int) -> None:
        keys: dict[str, Any] = {"priority": priority, "max_attempts": max_attempts}
        if named >= 0:
            keys["gpu_ids"] = (GPUS[named],)
        self.ids.append(self.service.ask(gpus, **keys))

    @rule(host=HOSTS)
    def claim(self, host: str) -> None:
        claim = self.service.leases.claim(host, MACHINES[host])
        if claim is None:
            return
        assert claim.training.id not in self.succeeded | self.cancelled
        assert set(claim.gpu_ids) <= {device.uuid for device in MACHINES[host].devices}
        self.alive.append(claim.token)

    @precondition(lambda self: self.alive)
    @rule(pick=PICK, step=st.integers(0, 9))
    def goes_on(self, pick: int, step: int) -> None:
        """A supervisor comes one state further, and reports."""
        token = self.alive[pick % len(self.alive)]
        try:
            state = self.service.state(self.training_of(token))
            if state is State.LEASED:
                self.service.outcomes.starting(token)
            elif state is State.STARTING:
                self.service.outcomes.running(token)
            elif self.service.leases.heartbeat(token).stop and state is State.RUNNING:
                self.service.outcomes.pausing(token)
            values = (Value("loss", step, self.service.clock.now, 1.0),)
            self.service.trainings.reports.write(token, Batch(values, step=step))
        except LeaseLost:
            self.buried(token)

    @precondition(lambda self: self.alive)
    @rule(pick=PICK, ending=ENDINGS, release=st.booleans())
    def ends(self, pick: int, ending: Ending, release: bool) -> None:
        token = self.alive[pick % len(self.alive)]
        training_id = self.training_of(token)
        asked = self.service.trainings.get(training_id).stop_request
        try:
            state = self.service.outcomes.finish(token, ending, release=release)
        except LeaseLost:
            self.buried(token)
            return
        except WrongState:
            assert ending.state is State.SUCCEEDED
            assert self.service.state(training_id) is State.LEASED
            return
        self.stopped_as(asked, state)
        self.note(training_id, state)
        if release:
            self.buried(token)

    @precondition(lambda self: self.alive)
    @rule(pick=PICK)
    def gives_back(self, pick: int) -> None:
        token = self.alive[pick % len(self.alive)]
        try:
            self.service.leases.release(token)
        except LeaseLost:
            return  # taken back, or not ended yet
        self.buried(token)

    @precondition(lambda self: self.alive)
    @rule(pick=PICK)
    def is_killed(self, pick: int) -> None:
        self.dead.append(self.alive.pop(pick % len(self.alive)))

    @rule(seconds=st.integers(1, 70))
    def time_passes(self, seconds: int) -> None:
        """Those that live beat; those whose lease ran out meanwhile find out."""
        self.service.clock.now += seconds * 1000
        for token in list(self.alive):
            try:
                self.service.leases.heartbeat(token)
            except LeaseLost:
                self.buried(token)

    @rule(seconds=st.integers(1, 70))
    def everybody_is_stopped(self, seconds: int) -> None:
        """As when the machine sleeps: nobody beats."""
        self.service.clock.now += seconds * 1000

    @rule(host=st.one_of(st.none(), HOSTS))
    def sweep(self, host: str | None) -> None:
        self.marked += [attempt.id for attempt in self.service.leases.expired(host)]

    @precondition(lambda self: self.marked)
    @rule(pick=PICK, twice=st.booleans())
    def is_taken_back(self, pick: int, twice: bool) -> None:
        attempt_id = self.marked[pick % len(self.marked)]
        training_id = self.column(attempts.c.training_id, attempts.c.id == attempt_id)
        asked = self.service.trainings.get(training_id).stop_request
        ended = self.column(attempts.c.ended_ms, attempts.c.id == attempt_id)
        before = self.service.state(training_id)
        for _ in range(1 + twice):
            state = self.service.leases.reclaim(attempt_id)
            if state is not None and ended is not None:
                assert state is before  # only its devices were still held
            elif state is not None:
                self.stopped_as(asked, state)
                self.note(training_id, state)

    @precondition(lambda self: self.dead)
    @rule(pick=PICK, ending=ENDINGS)
    def says_something_late(self, pick: int, ending: Ending) -> None:
        """A supervisor that was thought dead: what it says counts only while its token does."""
        token = self.dead[pick % len(self.dead)]
        row = self.row(attempts, attempts.c.token == token)
        if row.reclaiming_ms is None and row.ended_ms is None:
            return  # nobody has missed it yet
        before = self.row(trainings, trainings.c.id == row.training_id)
        for act in (
            lambda: self.service.outcomes.finish(token, ending),
            lambda: self.service.outcomes.running(token),
            lambda: self.service.trainings.reports.write(token, Batch(step=99)),
        ):
            with pytest.raises(LeaseLost):
                act()
        assert self.row(trainings, trainings.c.id == row.training_id) == before

    @rule(pick=PICK, act=st.sampled_from(["cancel", "pause", "resume", "retry"]))
    def a_user_acts(self, pick: int, act: str) -> None:
        training_id = self.ids[pick % len(self.ids)]
        before = self.service.trainings.get(training_id)
        try:
            after = getattr(self.service.trainings, act)(training_id)
        except WrongState:
            assert self.service.trainings.get(training_id) == before
            return
        if act in ("resume", "retry"):
            self.cancelled.discard(training_id)
        self.note(training_id, after.state)

    @invariant()
    def nothing_is_taken_twice(self) -> None:
        with self.service.database.reading() as connection:
            leases = list(connection.execute(sa.select(gpu_leases)))
            tries = list(connection.execute(sa.select(attempts)))
            all_trainings = {row.id: row for row in connection.execute(sa.select(trainings))}
        holding = [attempt for attempt in tries if attempt.released_ms is None]
        held = [(uuid, attempt.id) for attempt in holding for uuid in attempt.gpu_ids]
        assert sorted(held) == sorted((row.device_uuid, row.attempt_id) for row in leases)
        assert len({uuid for uuid, _ in held}) == len(held)
        open_tries = [attempt.training_id for attempt in tries if attempt.ended_ms is None]
        active = [row.id for row in all_trainings.values() if State(row.state) in ACTIVE]
        assert sorted(open_tries) == sorted(active)  # one attempt each, and none without
        assert sorted(all_trainings) == sorted(self.ids)
        for training_id, row in all_trainings.items():
            done = [a for a in tries if a.training_id == training_id and a.exit_cause == "done"]
            assert len(done) == (row.state == State.SUCCEEDED) == (training_id in self.succeeded)
            assert row.attempts_left >= 0
            assert not (row.stop_request and State(row.state) not in ACTIVE)
            assert training_id not in self.cancelled or row.state == State.CANCELLED
            assert (row.ended_ms is not None) == (State(row.state) in ENDED)

    def teardown(self) -> None:
        """Everybody dies. What still waits runs to its end: nothing was lost."""
        try:
            self.run_out()
        finally:
            self.context.__exit__(None, None, None)

    def run_out(self) -> None:
        self.service.clock.now += LEASE_MS
        for attempt in self.service.leases.expired():
            assert self.service.leases.reclaim(attempt.id) is not None
        begun = True
        while begun:
            begun = False
            for host, machine in MACHINES.items():
                while claim := self.service.leases.claim(host, machine):
                    begun = True
                    self.service.outcomes.starting(claim.token)
                    self.service.outcomes.finish(
                        claim.token, Ending(State.SUCCEEDED, "done", "done", 0)
                    )
        states = {self.service.state(training_id) for training_id in self.ids}
        assert states <= {*ENDED, State.PAUSED}

    def stopped_as(self, asked: str | None, state: State) -> None:
        """What a user asked holds, unless the training had come to its end by itself."""
        if asked == "cancel":
            assert state in (State.CANCELLED, State.SUCCEEDED)
        if asked == "pause":
            assert state in (State.PAUSED, State.SUCCEEDED, State.FAILED)

    def note(self, training_id: str, state: State) -> None:
        if state is State.SUCCEEDED:
            assert training_id not in self.succeeded
            self.succeeded.add(training_id)
        if state is State.CANCELLED:
            self.cancelled.add(training_id)

    def buried(self, token: str) -> None:
        self.alive.remove(token)
        self.dead.append(token)

    def training_of(self, token: str) -> str:
        return str(self.column(attempts.c.training_id, attempts.c.token == token))

    def column(self, column: sa.Column[Any], *where: sa.ColumnElement[bool]) -> Any:
        with self.service.database.reading() as connection:
            return connection.execute(sa.select(column).where(*where)).scalar_one()

    def row(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> Any:
        with self.service.database.reading() as connection:
            return connection.execute(sa.select(table).where(*where)).one()


def run(open_service: Callable[[], Any], examples: int, steps: int) -> None:
    class Machine(Traffic):
        pass

    Machine.open_service = staticmethod(open_service)  # type: ignore[method-assign]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_on_sqlite(migrated_sqlite: Path, tmp_path: Path) -> None:
    path = tmp_path / "traffic.db"

    @contextmanager
    def fresh() -> Iterator[Service]:
        for left in tmp_path.glob("traffic.db*"):
            left.unlink()
        shutil.copy(migrated_sqlite, path)
        with service_at(f"sqlite:///{path}") as service:
            yield service

    run(fresh, examples=30, steps=40)


def test_on_postgresql(migrated_postgresql: str) -> None:
    @contextmanager
    def fresh() -> Iterator[Service]:
        with postgresql_database(template=migrated_postgresql) as url, service_at(url) as service:
            yield service

    run(fresh, examples=8, steps=30)
