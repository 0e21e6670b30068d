"""What the channels `training/ID` and `queue` show, read from the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import gpu_leases, trainings
from drumline.jobs.newest import newest_metrics
from drumline.jobs.queue import Rules, in_order
from drumline.jobs.states import ACTIVE, State
from drumline.jobs.waiting import read_usage, read_waiting
from drumline.jobs.waits import Wait
from drumline.monitoring.readings import iso

_SHOWN = (
    "id",
    "name",
    "task",
    "owner",
    "state",
    "priority",
    "host_id",
    "world_size",
    "stop_request",
    "attempts_made",
    "step",
    "steps",
    "verdict",
)
_TIMES = ("created", "queued", "started", "ended", "progress")
MOST_SHOWN = 200


def read_trainings(connection: Connection, ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """The state of each of these trainings that exists, with its newest metrics and devices."""
    if not ids:
        return {}
    names = [*_SHOWN, *(f"{name}_ms" for name in _TIMES)]
    columns = [trainings.c[name] for name in names]
    query = sa.select(*columns).where(trainings.c.id.in_(list(ids)))
    rows = connection.execute(query).all()
    metrics = newest_metrics(connection, [row.id for row in rows])
    held = _held(connection, [row.id for row in rows])
    return {
        row.id: {
            **{name: getattr(row, name) for name in _SHOWN},
            **{name: _iso(getattr(row, f"{name}_ms")) for name in _TIMES},
            "gpu_ids": held.get(row.id, []),
            "metrics": {
                value.name: {"step": value.step, "value": value.value}
                for value in metrics.get(row.id, {}).values()
            },
        }
        for row in rows
    }


def read_queue(
    connection: Connection, now_ms: int, waits: Mapping[str, Wait] | None = None
) -> dict[str, Any]:
    """How many trainings there are in each state, which hold devices, and which wait, in order.

    Lists end after `MOST_SHOWN`. Usage of owners is that of now, so the order may change with time.

    Args:
        connection: A reading one.
        now_ms: The time.
        waits: Why trainings wait, by id, as far as it is known.
    """
    counts = sa.select(trainings.c.state, sa.func.count()).group_by(trainings.c.state)
    waiting = read_waiting(connection)
    usage = read_usage(connection, now_ms) if waiting else {}
    ordered = in_order(waiting, usage, now_ms, Rules())[:MOST_SHOWN]
    active = _active(connection)
    names = _names(connection, [job.id for job in ordered])
    return {
        "counts": {
            **dict.fromkeys(map(str, State), 0),
            **{row.state: row[1] for row in connection.execute(counts)},
        },
        "active": active,
        "waiting": [
            {
                "position": position,
                "id": job.id,
                "name": names.get(job.id),
                "owner": job.owner,
                "priority": job.priority,
                "gpus": job.gpus,
                "queued": iso(job.queued_ms),
                **_why((waits or {}).get(job.id), now_ms),
            }
            for position, job in enumerate(ordered, 1)
        ],
    }


def _why(wait: Wait | None, now_ms: int) -> dict[str, Any]:
    """Why it waits, and when it may start where that is known and not at once."""
    if wait is None:
        return {"code": None, "reason": None, "may_start": None}
    later = wait.may_start_ms is not None and wait.may_start_ms > now_ms
    return {
        "code": wait.code,
        "reason": wait.reason,
        "may_start": _iso(wait.may_start_ms) if later else None,
    }


def _active(connection: Connection) -> list[dict[str, Any]]:
    c = trainings.c
    query = (
        sa.select(c.id, c.name, c.owner, c.state, c.host_id)
        .where(c.state.in_([state.value for state in ACTIVE]))
        .order_by(c.started_ms, c.id)
        .limit(MOST_SHOWN)
    )
    rows = connection.execute(query).all()
    held = _held(connection, [row.id for row in rows])
    return [{**row._asdict(), "gpu_ids": held.get(row.id, [])} for row in rows]


def _held(connection: Connection, ids: Collection[str]) -> dict[str, list[str]]:
    c = gpu_leases.c
    query = sa.select(c.training_id, c.device_uuid).where(c.training_id.in_(list(ids)))
    found: dict[str, list[str]] = {}
    for training_id, uuid in connection.execute(query.order_by(c.device_uuid)):
        found.setdefault(training_id, []).append(uuid)
    return found


def _names(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    query = sa.select(trainings.c.id, trainings.c.name).where(trainings.c.id.in_(list(ids)))
    return {row.id: row.name for row in connection.execute(query)}


def _iso(time_ms: int | None) -> str | None:
    return None if time_ms is None else iso(time_ms)
