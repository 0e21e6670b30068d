"""The rows of a claim, written inside the transaction that makes it."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import attempts, gpu_leases, reservations, trainings
from drumline.jobs.moves import move
from drumline.jobs.states import State
from drumline.jobs.training import Training


@dataclass(frozen=True)
class Claim:
    """A training and its devices, now of whoever holds the token. `attempt` counts from 1."""

    training: Training
    attempt: int
    token: str
    host_id: str
    gpu_ids: tuple[str, ...]
    lease_until_ms: int


def lock_queued(connection: Connection, training_id: str) -> int | None:
    """Lock a training that still waits; how many attempts it has had. None where it is not to be
    had: another is taking it, it was cancelled, or its last attempt still holds devices.
    """
    query = (
        sa.select(trainings.c.attempts_made)
        .where(trainings.c.id == training_id, trainings.c.state == State.QUEUED.value)
        .with_for_update(skip_locked=True)
    )
    made = connection.execute(query).scalar_one_or_none()
    holding = sa.select(attempts.c.id).where(
        attempts.c.training_id == training_id, attempts.c.released_ms.is_(None)
    )
    return None if connection.execute(holding).first() else made


def kept_back(connection: Connection, devices: Collection[str]) -> bool:
    """Whether an operator keeps one of the devices back."""
    query = sa.select(reservations.c.device_uuid).where(
        reservations.c.device_uuid.in_(list(devices)), reservations.c.training_id.is_(None)
    )
    return connection.execute(query).first() is not None


def write_claim(
    connection: Connection,
    training_id: str,
    number: int,
    host_id: str,
    devices: tuple[str, ...],
    now_ms: int,
    lease_ms: int,
) -> Claim:
    """Write attempt `number` of a queued training that is locked, and its leases.

    Raises:
        IntegrityError: If a device is leased. The transaction must then be undone.
    """
    token, until = secrets.token_urlsafe(24), now_ms + lease_ms
    attempt = {
        "training_id": training_id,
        "number": number,
        "token": token,
        "host_id": host_id,
        "gpu_ids": list(devices),
        "gpu_count": len(devices),
        "lease_until_ms": until,
        "claimed_ms": now_ms,
    }
    inserted = connection.execute(sa.insert(attempts).values(**attempt)).inserted_primary_key
    assert inserted is not None
    leases = [
        {
            "device_uuid": uuid,
            "training_id": training_id,
            "attempt_id": inserted[0],
            "host_id": host_id,
            "leased_ms": now_ms,
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
        now_ms,
        host_id=host_id,
        world_size=max(1, len(devices)),
        attempts_made=number,
        attempts_left=trainings.c.attempts_left - 1,
    )
    assert moved, "the row is locked and was queued"
    row = connection.execute(sa.select(trainings).where(trainings.c.id == training_id)).one()
    return Claim(Training.of(row), number, token, host_id, devices, until)
