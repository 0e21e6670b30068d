"""Devices held back, as the database has them: for trainings that wait, or by an operator.

What is held back for a training is decided anew at each look (`jobs.queue`); the rows tell it to
others, and to other hosts, that need not hold devices back for the same training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import reservations, trainings
from drumline.jobs.queue import Held
from drumline.jobs.states import State

STALE_MS = 120_000
"""What is held back for a training, and was not renewed by its host for this long, is void."""


@dataclass(frozen=True)
class Reservation:
    """Why a device is held back; `training_id` is None where an operator did it."""

    device_uuid: str
    host_id: str | None
    training_id: str | None
    reason: str
    made_ms: int
    renewed_ms: int


def read_reservations(connection: Connection, now_ms: int) -> dict[str, Reservation]:
    """All that count, by UUID."""
    c = reservations.c
    query = sa.select(
        c.device_uuid, c.host_id, c.training_id, c.reason, c.made_ms, c.renewed_ms
    ).where(sa.or_(c.training_id.is_(None), c.renewed_ms > now_ms - STALE_MS))
    return {row.device_uuid: Reservation(*row) for row in connection.execute(query)}


def must_be_written(
    held: Held | None, host_id: str, reserved: Mapping[str, Reservation], now_ms: int
) -> bool:
    """Whether the rows of a host say something else than `held`, or are about to be void."""
    rows = [row for row in reserved.values() if row.training_id and row.host_id == host_id]
    written = {(row.training_id, row.device_uuid) for row in rows}
    wanted = {(held.training, uuid) for uuid in held.devices} if held and held.firm else set()
    old = any(row.renewed_ms <= now_ms - STALE_MS // 2 for row in rows)
    return written != wanted or old


def write_held(connection: Connection, host_id: str, held: Held | None, now_ms: int) -> None:
    """Make the rows of a host say what is held back there now."""
    c = reservations.c
    mine = sa.and_(c.training_id.is_not(None), c.host_id == host_id)
    if held is None or not held.firm or not _still_waits(connection, held.training):
        connection.execute(sa.delete(reservations).where(mine))
        return
    same = sa.select(sa.func.min(c.made_ms)).where(mine, c.training_id == held.training)
    made_ms = connection.execute(same).scalar_one() or now_ms
    connection.execute(sa.delete(reservations).where(mine))
    stale = sa.and_(c.training_id.is_not(None), c.renewed_ms <= now_ms - STALE_MS)
    connection.execute(sa.delete(reservations).where(stale))
    elsewhere = sa.select(c.device_uuid).where(c.training_id == held.training)
    if connection.execute(elsewhere).first():  # another host was faster
        return
    rows = [
        {
            "device_uuid": uuid,
            "host_id": host_id,
            "training_id": held.training,
            "reason": f"held back for training {held.training}",
            "made_ms": made_ms,
            "renewed_ms": now_ms,
        }
        for uuid in sorted(held.devices)
    ]
    connection.execute(sa.insert(reservations), rows)


def _still_waits(connection: Connection, training_id: str) -> bool:
    """Locks the training's row before its reservations, as a claim does: no deadlock."""
    query = sa.select(trainings.c.id).where(
        trainings.c.id == training_id, trainings.c.state == State.QUEUED.value
    )
    return connection.execute(query.with_for_update()).first() is not None
