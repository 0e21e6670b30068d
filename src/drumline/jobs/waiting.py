"""What the queue decides on, read from the database: who waits, who used what, who holds what."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import attempts, devices, gpu_leases, reservations, trainings
from drumline.jobs.fleet import Lease, Taken
from drumline.jobs.queue import Waiting
from drumline.jobs.reservations import STALE_MS
from drumline.jobs.states import State

MOST_CONSIDERED = 2_000
"""A longer queue is cut to those first by priority and age; nobody behind them would start."""

USAGE_WINDOW_MS = 24 * 3_600_000
"""Fair share looks at the device-seconds of this long."""


def read_waiting(connection: Connection) -> list[Waiting]:
    """All trainings in state queued that can be claimed."""
    return _queued(connection, ~_holds_devices())


def read_draining(connection: Connection) -> list[Waiting]:
    """Those in state queued whose last attempt has not given its devices back yet."""
    return _queued(connection, _holds_devices())


def _holds_devices() -> sa.ColumnElement[bool]:
    attempt = sa.select(attempts.c.id).where(
        attempts.c.training_id == trainings.c.id, attempts.c.released_ms.is_(None)
    )
    return sa.exists(attempt)


def _queued(connection: Connection, condition: sa.ColumnElement[bool]) -> list[Waiting]:
    c = trainings.c
    query = (
        sa.select(
            c.id,
            c.owner,
            c.priority,
            c.queued_ms,
            c.gpus,
            c.gpu_ids,
            c.memory_bytes,
            c.asked_host,
            c.expected_s,
        )
        .where(c.state == State.QUEUED.value, condition)
        .order_by(c.priority.desc(), c.queued_ms, c.id)
        .limit(MOST_CONSIDERED)
    )
    return [_waiting(row) for row in connection.execute(query)]


def _waiting(row: Any) -> Waiting:
    return Waiting(
        id=row.id,
        owner=row.owner,
        priority=row.priority,
        queued_ms=row.queued_ms,
        gpus=int(row.gpus) if row.gpus.isdecimal() else row.gpus,
        gpu_ids=tuple(row.gpu_ids),
        memory_bytes=row.memory_bytes,
        host=row.asked_host,
        expected_ms=None if row.expected_s is None else round(row.expected_s * 1000),
    )


def read_usage(connection: Connection, now_ms: int) -> dict[str, int]:
    """Device-milliseconds of each owner within the window, running attempts included."""
    begin = now_ms - USAGE_WINDOW_MS
    claimed, released = attempts.c.claimed_ms, attempts.c.released_ms
    since = sa.case((claimed < begin, begin), else_=claimed)
    used = attempts.c.gpu_count * (sa.func.coalesce(released, now_ms) - since)
    query = (
        sa.select(trainings.c.owner, sa.func.sum(used))
        .join(trainings, trainings.c.id == attempts.c.training_id)
        .where(sa.or_(released.is_(None), released > begin))
        .group_by(trainings.c.owner)
    )
    return {owner: int(total) for owner, total in connection.execute(query)}


def read_taken(connection: Connection, host_id: str, now_ms: int) -> Taken:
    """Who holds which devices, and what else bears on a host."""
    return Taken(
        leases=_leases(connection),
        kept_back=_kept_back(connection),
        elsewhere=_elsewhere(connection, host_id, now_ms),
        on_cpu=_on_cpu(connection, host_id),
        only_cpu=connection.execute(sa.select(devices.c.id).limit(1)).first() is None,
    )


def _leases(connection: Connection) -> dict[str, Lease]:
    query = (
        sa.select(
            gpu_leases.c.device_uuid,
            gpu_leases.c.training_id,
            attempts.c.claimed_ms,
            trainings.c.expected_s,
        )
        .join(attempts, attempts.c.id == gpu_leases.c.attempt_id)
        .join(trainings, trainings.c.id == gpu_leases.c.training_id)
    )
    return {
        row.device_uuid: Lease(
            row.training_id,
            None if row.expected_s is None else row.claimed_ms + round(row.expected_s * 1000),
        )
        for row in connection.execute(query)
    }


def _kept_back(connection: Connection) -> dict[str, str]:
    query = sa.select(reservations.c.device_uuid, reservations.c.reason)
    rows = connection.execute(query.where(reservations.c.training_id.is_(None)))
    return {row.device_uuid: row.reason for row in rows}


def _elsewhere(connection: Connection, host_id: str, now_ms: int) -> frozenset[str]:
    query = sa.select(reservations.c.training_id).where(
        reservations.c.training_id.is_not(None),
        reservations.c.host_id != host_id,
        reservations.c.renewed_ms > now_ms - STALE_MS,
    )
    return frozenset(connection.execute(query).scalars())


def _on_cpu(connection: Connection, host_id: str) -> int:
    query = sa.select(sa.func.count()).where(
        attempts.c.host_id == host_id,
        attempts.c.released_ms.is_(None),
        attempts.c.gpu_count == 0,
    )
    return int(connection.execute(query).scalar_one())
