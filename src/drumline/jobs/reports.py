"""What trainings report: metrics, and events of their run directories, copied in batches.

Each batch is one transaction, guarded by the attempt's token, and names the byte of the event log
up to which it reaches. A batch that comes twice changes nothing, and a supervisor that starts again
goes on where the last batch ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from drumline.database import Database, now_ms
from drumline.database.tables import training_events, training_metrics, trainings
from drumline.jobs.moves import live_attempt
from drumline.jobs.newest import newest_metrics
from drumline.jobs.reported import Batch, Event, Point, Value
from drumline.jobs.states import ACTIVE

__all__ = ["Batch", "Event", "Point", "Reports", "Value", "forget_some"]


class Reports:
    """Metrics and events of all trainings of one database."""

    def __init__(self, database: Database, clock: Callable[[], int] = now_ms) -> None:
        self._database = database
        self._clock = clock

    def write(self, token: str, batch: Batch) -> None:
        """Keep a batch of an attempt.

        Raises:
            LeaseLost: If the token counts no more; nothing is kept.
        """
        now = self._clock()
        with self._database.writing() as connection:
            training_id = live_attempt(connection, token).training_id
            _keep_values(connection, training_id, batch.values)
            _keep_events(connection, training_id, batch.events)
            _keep_progress(connection, training_id, batch, now)

    def metrics(
        self,
        training_id: str,
        names: Collection[str] = (),
        *,
        from_step: int | None = None,
        to_step: int | None = None,
        points: int = 500,
    ) -> dict[str, list[Point]]:
        """Metrics by name over a range of steps, thinned to at most `points` each.

        Args:
            training_id: Which training; unknown ones have no metrics.
            names: Which metrics; empty: all.
            from_step: First step; by default the first there is.
            to_step: Last step, included; by default the last there is.
            points: So many stretches of equally many steps, each with mean, least and most.
        """
        c = training_metrics.c
        where: list[sa.ColumnElement[bool]] = [c.training_id == training_id]
        if names:
            where.append(c.name.in_(list(names)))
        if from_step is not None:
            where.append(c.step >= from_step)
        if to_step is not None:
            where.append(c.step <= to_step)
        with self._database.reading() as connection:
            ends = sa.select(sa.func.min(c.step), sa.func.max(c.step)).where(*where)
            first, last = connection.execute(ends).one()
            if first is None:
                return {}
            width = -(-(last - first + 1) // max(1, points))
            rows = connection.execute(_thinned(where, first, width))
            found: dict[str, list[Point]] = {}
            for name, *point in rows:
                found.setdefault(name, []).append(Point(*point))
            return found

    def latest(self, training_id: str) -> dict[str, Value]:
        """The last value of each metric, by name."""
        with self._database.reading() as connection:
            return newest_metrics(connection, [training_id]).get(training_id, {})

    def events(
        self,
        training_id: str,
        *,
        after: int = -1,
        kinds: Collection[str] = (),
        limit: int = 200,
        last: bool = False,
    ) -> list[Event]:
        """Events in the order of the log: the first `limit`, or the `last`, of those that begin
        after byte `after`.
        """
        c = training_events.c
        query = (
            sa.select(c.offset, c.time_ms, c.kind, c.event)
            .where(c.training_id == training_id, c.offset > after)
            .order_by(c.offset.desc() if last else c.offset)
            .limit(limit)
        )
        if kinds:
            query = query.where(c.kind.in_(list(kinds)))
        with self._database.reading() as connection:
            found = [Event(*row) for row in connection.execute(query)]
        return found[::-1] if last else found


def _thinned(where: Iterable[sa.ColumnElement[bool]], first: int, width: int) -> sa.Select[Any]:
    c = training_metrics.c
    stretch = (c.step - first) // width
    present = sa.func.count(c.value)
    return (
        sa.select(
            c.name,
            sa.func.max(c.step),
            sa.func.max(c.time_ms),
            sa.func.avg(c.value),
            sa.func.min(c.value),
            sa.func.max(c.value),
            present,
            sa.func.count() - present,
        )
        .where(*where)
        .group_by(c.name, stretch)
        .order_by(c.name, stretch)
    )


def _keep_values(connection: Connection, training_id: str, values: Iterable[Value]) -> None:
    rows = [
        {
            "training_id": training_id,
            "name": value.name,
            "step": value.step,
            "time_ms": value.time_ms,
            "value": value.value
            if value.value is not None and math.isfinite(value.value)
            else None,
        }
        for value in values
    ]
    if rows:
        connection.execute(_upsert(connection, training_metrics, ("time_ms", "value")), rows)


def _keep_events(connection: Connection, training_id: str, events: Iterable[Event]) -> None:
    rows = [
        {
            "training_id": training_id,
            "offset": event.offset,
            "time_ms": event.time_ms,
            "kind": event.kind,
            "event": dict(event.event),
        }
        for event in events
    ]
    if rows:
        upsert = _upsert(connection, training_events, ("time_ms", "kind", "event"))
        connection.execute(upsert, rows)


def _keep_progress(connection: Connection, training_id: str, batch: Batch, now: int) -> None:
    told = {"step": batch.step, "steps": batch.steps}
    values: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    if batch.step is not None:
        values["progress_ms"] = now
    if batch.offset is not None:  # a batch that comes late does not set it back
        reached = trainings.c.events_offset
        values["events_offset"] = sa.case((reached > batch.offset, reached), else_=batch.offset)
    if not values:
        return
    active = [state.value for state in ACTIVE]
    connection.execute(
        sa.update(trainings)
        .where(trainings.c.id == training_id, trainings.c.state.in_(active))
        .values(**values, changed_ms=now)
    )


def forget_some(connection: Connection, training_id: str, most: int = 20_000) -> bool:
    """Delete metrics and events of a training, up to `most` of each; whether there may be more."""
    for table in (training_metrics, training_events):
        keys = list(table.primary_key.columns)[1:]
        mine = table.c.training_id == training_id
        place = sa.select(*keys).where(mine).order_by(*keys).offset(most).limit(1)
        beyond = connection.execute(place).one_or_none()
        before = [] if beyond is None else [sa.tuple_(*keys) < sa.tuple_(*beyond)]
        connection.execute(sa.delete(table).where(mine, *before))
        if beyond is not None:
            return True
    return False


def _upsert(connection: Connection, table: sa.Table, columns: Iterable[str]) -> Any:
    """An INSERT that replaces these columns where the row is there."""
    insert: Any = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table)
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={column: statement.excluded[column] for column in columns},
    )
