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

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from drumline.database import Database, now_ms
from drumline.database.tables import attempts, gpu_leases, reservations, trainings
from drumline.hardware import Machine
from drumline.jobs.claiming import Claim, kept_back, lock_queued, write_claim
from drumline.jobs.creation import checked_config, insert_training, row_of
from drumline.jobs.errors import DeviceTaken, LeaseLost
from drumline.jobs.fleet import host_of
from drumline.jobs.outcome import Ending, end_attempt, give_back
from drumline.jobs.queue import Decision, Rules, decide, in_order
from drumline.jobs.reservations import (
    Reservation,
    must_be_written,
    read_reservations,
    write_held,
)
from drumline.jobs.states import State
from drumline.jobs.training import Attempt, Request
from drumline.jobs.waiting import read_taken, read_usage, read_waiting

LEASE_MS = 30_000
_TRIES = 20


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
            over = sa.select(attempts.c.id).where(
                *held, attempts.c.reclaiming_ms.is_(None), attempts.c.lease_until_ms <= now
            )
            # One that a heartbeat or another sweep holds at this moment is left to it.
            ids = connection.execute(
                over.order_by(attempts.c.id).with_for_update(skip_locked=True)
            ).scalars()
            connection.execute(
                sa.update(attempts).where(attempts.c.id.in_(list(ids))).values(reclaiming_ms=now)
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

    def take(self, request: Request, host_id: str, gpu_ids: Sequence[str]) -> Claim:
        """Enter a run that somebody starts by hand, with the devices it has chosen.

        It passes by the queue. When its lease runs out it counts as failed and is not started
        again.

        Raises:
            ConfigError: If the config cannot be used.
            DeviceTaken: If one of the devices is leased, or kept back by an operator.
        """
        config = checked_config(request.config, by_hand=True)
        request = replace(request, gpu_ids=(), gpus=len(gpu_ids), max_attempts=1, draft=False)
        now = self._clock()
        try:
            with self._database.writing() as connection:
                row = row_of(connection, request, config, now, by_hand=True)
                insert_training(connection, row)
                if kept_back(connection, gpu_ids):
                    raise DeviceTaken(self._holders(gpu_ids))
                return write_claim(
                    connection, row["id"], 1, host_id, tuple(gpu_ids), now, self._lease_ms
                )
        except IntegrityError:
            raise DeviceTaken(self._holders(gpu_ids)) from None

    def reserve(self, gpu_ids: Sequence[str], reason: str) -> None:
        """Keep devices back from all trainings until `unreserve`. What runs on them runs on."""
        now = self._clock()
        rows = [
            {"device_uuid": uuid, "reason": reason, "made_ms": now, "renewed_ms": now}
            for uuid in sorted(set(gpu_ids))
        ]
        with self._database.writing() as connection:
            uuids = [row["device_uuid"] for row in rows]
            connection.execute(sa.delete(reservations).where(reservations.c.device_uuid.in_(uuids)))
            if rows:
                connection.execute(sa.insert(reservations), rows)

    def unreserve(self, gpu_ids: Sequence[str]) -> None:
        """Let trainings have devices again that an operator kept back."""
        with self._database.writing() as connection:
            connection.execute(
                sa.delete(reservations).where(
                    reservations.c.device_uuid.in_(list(gpu_ids)),
                    reservations.c.training_id.is_(None),
                )
            )

    def reserved(self) -> dict[str, Reservation]:
        """All devices held back, by an operator or for a waiting training, by UUID."""
        with self._database.reading() as connection:
            return read_reservations(connection, self._clock())

    def _holders(self, gpu_ids: Sequence[str]) -> dict[str, str]:
        held, reserved = self.held(), self.reserved()
        kept = {uuid: f"kept back: {reserved[uuid].reason}" for uuid in gpu_ids if uuid in reserved}
        return kept | {
            uuid: f"held by training {held[uuid].training_id}" for uuid in gpu_ids if uuid in held
        }

    def _decide(
        self, host_id: str, machine: Machine, locked: Mapping[str, object], now: int
    ) -> Decision:
        with self._database.reading() as connection:
            waiting = read_waiting(connection)
            usage = read_usage(connection, now) if waiting else {}
            taken = replace(read_taken(connection, host_id, now), locked=locked)
            reserved = read_reservations(connection, now)
        ordered = in_order(waiting, usage, now, self._rules)
        decision = decide(host_of(host_id, machine, taken), ordered, now, self._rules)
        if must_be_written(decision.held, host_id, reserved, now):
            with suppress(IntegrityError), self._database.writing() as connection:
                write_held(connection, host_id, decision.held, now)
        return decision

    def _take(self, host_id: str, decision: Decision, now: int) -> Claim | None:
        """The transaction; None where the training is not to be had any more."""
        assert decision.start is not None
        training_id, devices = decision.start.id, decision.devices
        with self._database.writing() as connection:
            made = lock_queued(connection, training_id)
            if made is None or kept_back(connection, devices):
                return None
            return write_claim(
                connection, training_id, made + 1, host_id, devices, now, self._lease_ms
            )


def _holding(token: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions on an attempt: it has this token and its devices."""
    return (
        attempts.c.token == token,
        attempts.c.reclaiming_ms.is_(None),
        attempts.c.released_ms.is_(None),
    )
