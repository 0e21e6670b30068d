"""Leases: the right of one attempt to its devices, for a time that its heartbeat renews.

A claim is one writing transaction that takes a training and all its devices, or nothing: the
training's row is locked and must still be queued, and a device's UUID is the primary key of
`gpu_leases`, so a second lease of it cannot be written. What to claim is decided before, on what
was read (`jobs.queue`); when somebody was faster, it is decided anew.

A lease that ran out is taken back in two steps. `expired` marks the attempt: its token counts no
more, but its devices stay taken. When the agent of its host has seen that the process group is
gone, `reclaim` gives the devices back and queues the training again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from drumline.database import Database, now_ms
from drumline.database.tables import attempts, gpu_leases, reservations, trainings
from drumline.hardware import Machine
from drumline.jobs.errors import LeaseLost
from drumline.jobs.fleet import host_of
from drumline.jobs.moves import move
from drumline.jobs.outcome import Ending, end_attempt, give_back
from drumline.jobs.queue import Decision, Rules, decide, in_order
from drumline.jobs.states import State
from drumline.jobs.training import Attempt, Training
from drumline.jobs.waiting import read_taken, read_usage, read_waiting

LEASE_MS = 30_000
_TRIES = 20


@dataclass(frozen=True)
class Claim:
    """A training and its devices, now of whoever holds the token."""

    training: Training
    attempt: int
    token: str
    host_id: str
    gpu_ids: tuple[str, ...]
    lease_until_ms: int


@dataclass(frozen=True)
class Heartbeat:
    """The answer to a heartbeat: how long the lease holds now, and what the user asked for."""

    lease_until_ms: int
    stop: Literal["cancel", "pause"] | None


@dataclass(frozen=True)
class HeldDevice:
    """A device and who holds it. `reclaiming`: the lease ran out, its processes may still be."""

    device_uuid: str
    training_id: str
    attempt: int
    host_id: str
    lease_until_ms: int
    reclaiming: bool


class Leases:
    """All leases of one database.

    Args:
        database: Where they are.
        lease_ms: How long one holds without a heartbeat.
        rules: When devices are held back for big trainings.
        clock: The time; for tests.
    """

    def __init__(
        self,
        database: Database,
        *,
        lease_ms: int = LEASE_MS,
        rules: Rules | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._database = database
        self._lease_ms = lease_ms
        self._rules = rules or Rules()
        self._clock = clock

    def claim(
        self, host_id: str, machine: Machine, locked: Mapping[str, object] | None = None
    ) -> Claim | None:
        """Take the next training that can start on a host now, with all its devices.

        Args:
            host_id: The host, which must be in the table of hosts.
            machine: The host as it is now; devices in use by others are left alone.
            locked: Devices that runs outside the queue hold, by UUID, and who they are.

        Returns:
            The claim; None where nothing can start. Call again until then.
        """
        for _ in range(_TRIES):
            now = self._clock()
            decision = self._decide(host_id, machine, locked or {}, now)
            self._hold_back(host_id, decision, now)
            if decision.start is None:
                return None
            try:
                claim = self._take(host_id, decision, now)
            except IntegrityError:  # a device was taken since it was read
                continue
            if claim is not None:
                return claim
        return None

    def heartbeat(self, token: str) -> Heartbeat:
        """Renew a lease.

        Raises:
            LeaseLost: If it was taken back or given back: end the attempt's processes.
        """
        until = self._clock() + self._lease_ms
        with self._database.writing() as connection:
            renewed = connection.execute(
                sa.update(attempts).where(*_holding(token)).values(lease_until_ms=until)
            )
            if renewed.rowcount != 1:
                raise LeaseLost
            query = (
                sa.select(trainings.c.stop_request)
                .join(attempts, attempts.c.training_id == trainings.c.id)
                .where(attempts.c.token == token)
            )
            return Heartbeat(until, connection.execute(query).scalar_one())

    def release(self, token: str) -> None:
        """Give back the devices of an attempt whose end is written. Twice is as once.

        Raises:
            LeaseLost: If the lease was taken back, or the attempt has not ended.
        """
        now = self._clock()
        with self._database.writing() as connection:
            query = sa.select(attempts).where(attempts.c.token == token).with_for_update()
            row = connection.execute(query).one_or_none()
            if row is None or row.reclaiming_ms is not None or row.ended_ms is None:
                raise LeaseLost
            if row.released_ms is None:
                give_back(connection, row.id, now)

    def expired(self, host_id: str | None = None) -> list[Attempt]:
        """First step of taking back: mark leases that ran out, and list all that are marked.

        Args:
            host_id: Only those of this host.
        """
        now = self._clock()
        held: list[sa.ColumnElement[bool]] = [attempts.c.released_ms.is_(None)]
        if host_id is not None:
            held.append(attempts.c.host_id == host_id)
        with self._database.writing() as connection:
            connection.execute(
                sa.update(attempts)
                .where(
                    *held,
                    attempts.c.reclaiming_ms.is_(None),
                    attempts.c.lease_until_ms <= now,
                )
                .values(reclaiming_ms=now)
            )
            marked = sa.select(attempts).where(*held, attempts.c.reclaiming_ms.is_not(None))
            rows = connection.execute(marked.order_by(attempts.c.id))
            return [Attempt.of(row) for row in rows]

    def reclaim(self, attempt_id: int, ending: Ending | None = None) -> State | None:
        """Second step: the process group is gone, so give the devices back and queue again.

        Args:
            attempt_id: Of an attempt that `expired` listed.
            ending: How it ended, where its run directory tells; by default it is to go on.

        Returns:
            The state the training is in then; None where somebody else had done it.
        """
        now = self._clock()
        ending = ending or Ending(State.QUEUED, "lost", "the attempt's supervisor was lost")
        with self._database.writing() as connection:
            query = (
                sa.select(attempts)
                .where(
                    attempts.c.id == attempt_id,
                    attempts.c.reclaiming_ms.is_not(None),
                    attempts.c.released_ms.is_(None),
                )
                .with_for_update()
            )
            row = connection.execute(query).one_or_none()
            if row is None:
                return None
            if row.ended_ms is None:
                state = end_attempt(connection, row, ending, now, token=None)
            else:  # its end was written, only the devices were not given back
                ended = sa.select(trainings.c.state).where(trainings.c.id == row.training_id)
                state = State(connection.execute(ended).scalar_one())
            give_back(connection, row.id, now)
            return state

    def held(self) -> dict[str, HeldDevice]:
        """All leased devices by UUID."""
        query = sa.select(
            gpu_leases.c.device_uuid,
            gpu_leases.c.training_id,
            gpu_leases.c.host_id,
            attempts.c.number,
            attempts.c.lease_until_ms,
            attempts.c.reclaiming_ms,
        ).join(attempts, attempts.c.id == gpu_leases.c.attempt_id)
        with self._database.reading() as connection:
            return {
                row.device_uuid: HeldDevice(
                    row.device_uuid,
                    row.training_id,
                    row.number,
                    row.host_id,
                    row.lease_until_ms,
                    row.reclaiming_ms is not None,
                )
                for row in connection.execute(query)
            }

    def _decide(
        self, host_id: str, machine: Machine, locked: Mapping[str, object], now: int
    ) -> Decision:
        with self._database.reading() as connection:
            waiting = read_waiting(connection)
            usage = read_usage(connection, now)
            taken = replace(read_taken(connection, host_id, now), locked=locked)
        ordered = in_order(waiting, usage, now, self._rules)
        return decide(host_of(host_id, machine, taken), ordered, now, self._rules)

    def _take(self, host_id: str, decision: Decision, now: int) -> Claim | None:
        """The transaction; None where the training is not to be had any more."""
        assert decision.start is not None
        training_id, devices = decision.start.id, decision.devices
        with self._database.writing() as connection:
            query = (
                sa.select(trainings)
                .where(trainings.c.id == training_id, trainings.c.state == State.QUEUED.value)
                .with_for_update(skip_locked=True)
            )
            row = connection.execute(query).one_or_none()
            if row is None or not _free_of_others(connection, training_id, devices):
                return None
            number, token = row.attempts_made + 1, secrets.token_urlsafe(24)
            attempt = {
                "training_id": training_id,
                "number": number,
                "token": token,
                "host_id": host_id,
                "gpu_ids": list(devices),
                "gpu_count": len(devices),
                "lease_until_ms": now + self._lease_ms,
                "claimed_ms": now,
            }
            _write_claim(connection, attempt, now)
            query = sa.select(trainings).where(trainings.c.id == training_id)
            training = Training.of(connection.execute(query).one())
        return Claim(training, number, token, host_id, devices, now + self._lease_ms)

    def _hold_back(self, host_id: str, decision: Decision, now: int) -> None:
        """Write down what is held back on this host, where that has changed."""
        del host_id, decision, now


def _write_claim(connection: Connection, attempt: dict[str, Any], now: int) -> None:
    training_id, devices = attempt["training_id"], attempt["gpu_ids"]
    inserted = connection.execute(sa.insert(attempts).values(**attempt))
    assert inserted.inserted_primary_key is not None
    leases = [
        {
            "device_uuid": uuid,
            "training_id": training_id,
            "attempt_id": inserted.inserted_primary_key[0],
            "host_id": attempt["host_id"],
            "leased_ms": now,
        }
        for uuid in sorted(devices)  # one order for all, so that two claims cannot deadlock
    ]
    if leases:
        connection.execute(sa.insert(gpu_leases), leases)
    connection.execute(sa.delete(reservations).where(reservations.c.training_id == training_id))
    moved = move(
        connection,
        training_id,
        State.LEASED,
        now,
        host_id=attempt["host_id"],
        world_size=max(1, len(devices)),
        attempts_made=attempt["number"],
        attempts_left=trainings.c.attempts_left - 1,
    )
    assert moved, "the row is locked and was queued"


def _free_of_others(connection: Connection, training_id: str, devices: Collection[str]) -> bool:
    """No earlier attempt of the training still holds devices, and none is reserved by others."""
    draining = sa.select(attempts.c.id).where(
        attempts.c.training_id == training_id, attempts.c.released_ms.is_(None)
    )
    reserved = sa.select(reservations.c.device_uuid).where(
        reservations.c.device_uuid.in_(list(devices)), reservations.c.training_id.is_(None)
    )
    return not (connection.execute(draining).first() or connection.execute(reserved).first())


def _holding(token: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions on an attempt: it has this token and its devices."""
    return (
        attempts.c.token == token,
        attempts.c.reclaiming_ms.is_(None),
        attempts.c.released_ms.is_(None),
    )
