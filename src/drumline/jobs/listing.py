"""Lists of trainings: what narrows them, and cursors for their parts.

A cursor is a place, a time and an id, not a count, so that trainings made meanwhile shift nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import trainings
from drumline.errors import BadInput
from drumline.jobs.states import State
from drumline.jobs.training import Training

MOST_PER_PAGE = 200


@dataclass(frozen=True)
class Filter:
    """Which trainings a list shows; empty fields do not narrow it.

    `text` is looked for in names, ids and run directories, whatever its case.
    """

    states: Collection[State] = ()
    owner: str | None = None
    task: str | None = None
    host: str | None = None
    text: str | None = None
    archived: bool = False


@dataclass(frozen=True)
class Page:
    """Part of a list. `next_cursor` gives the next part; None at the end."""

    items: tuple[Training, ...]
    next_cursor: str | None


def read_page(connection: Connection, wanted: Filter, limit: int, cursor: str | None) -> Page:
    """The trainings after the cursor, the newest first.

    Raises:
        BadInput: If the cursor is not one that a list gave.
    """
    limit = max(1, min(limit, MOST_PER_PAGE))
    query = (
        sa.select(trainings)
        .where(*_conditions(wanted))
        .order_by(trainings.c.created_ms.desc(), trainings.c.id.desc())
        .limit(limit + 1)
    )
    if cursor is not None:
        query = query.where(_after(*_read_cursor(cursor)))
    found = [Training.of(row) for row in connection.execute(query)]
    items = tuple(found[:limit])
    return Page(items, _write_cursor(items[-1]) if len(found) > limit else None)


def _conditions(wanted: Filter) -> list[sa.ColumnElement[bool]]:
    archived = trainings.c.archived_ms
    conditions: list[sa.ColumnElement[bool]] = [
        archived.is_not(None) if wanted.archived else archived.is_(None)
    ]
    if wanted.states:
        states = [state.value for state in wanted.states]
        conditions.append(trainings.c.state.in_(states))
    for column, value in (
        (trainings.c.owner, wanted.owner),
        (trainings.c.task, wanted.task),
        (trainings.c.host_id, wanted.host),
    ):
        if value is not None:
            conditions.append(column == value)
    told = (wanted.owner, wanted.task, wanted.host, wanted.text)
    if any("\x00" in value for value in told if value):  # which PostgreSQL does not take
        conditions.append(sa.false())
        return conditions
    if wanted.text:
        columns = (trainings.c.name, trainings.c.id, trainings.c.run_dir)
        conditions.append(sa.or_(*(c.icontains(wanted.text, autoescape=True) for c in columns)))
    return conditions


def _after(created_ms: int, training_id: str) -> sa.ColumnElement[bool]:
    return sa.or_(
        trainings.c.created_ms < created_ms,
        sa.and_(trainings.c.created_ms == created_ms, trainings.c.id < training_id),
    )


def _write_cursor(last: Training) -> str:
    place = f"{last.created_ms}:{last.id}"
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[int, str]:
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        time, colon, training_id = base64.urlsafe_b64decode(padded).decode().partition(":")
        if not colon or not 0 <= int(time) < 2**63 or "\x00" in training_id:
            raise ValueError
        return int(time), training_id
    except (ValueError, binascii.Error):
        raise BadInput(
            f"{cursor!r} is not a cursor.", remedy="Leave it out to begin anew.", cursor=cursor
        ) from None
