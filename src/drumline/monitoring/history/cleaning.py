"""Deleting what is older than it is kept for, a little at a time.

Each transaction deletes a few thousand rows at the old end of a table, in the order of its key.
Between two of them is a pause in which whoever waits to write does so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.config.service import ServiceSettings
from drumline.database import Database
from drumline.monitoring.history.marks import CLEANED, marks, set_mark
from drumline.monitoring.history.resolution import COARSEST_S, RAW, ROLLUPS, kept_s
from drumline.monitoring.history.stretches import device_numbers

ROWS_AT_ONCE = 4000
PAUSE_S = 0.15
"""Longer than the 100 ms after which a process that waits for SQLite's lock tries again at the
latest; within one process turns are taken in order anyway."""


def clean_up(database: Database, now_s: int, settings: ServiceSettings, batches: int | None) -> int:
    """Delete what is too old; the number of rows deleted. See `History.clean_up`."""
    horizons = _horizons(database, now_s, settings)
    return sum(islice(_batches(database, horizons), batches))


def _horizons(database: Database, now_s: int, settings: ServiceSettings) -> dict[sa.Table, int]:
    """The times before which rows go. Rows that are yet to be rolled up stay, and the horizon is a
    border of the coarsest buckets, so that no bucket is ever made anew of a part of its rows.
    """
    with database.writing() as connection:
        through = marks(connection, "alone")
        rolled = {rollup.source: through[rollup.step_s] for rollup in ROLLUPS}
        horizons = {}
        for table, kept in kept_s(settings).items():
            horizon = min(now_s - kept, rolled.get(table, now_s))
            horizons[table] = horizon - horizon % COARSEST_S
        cleaned = max(horizons[rollup.source] for rollup in ROLLUPS)
        if cleaned > through[CLEANED]:
            set_mark(connection, CLEANED, cleaned)
    return horizons


def _batches(database: Database, horizons: dict[sa.Table, int]) -> Iterator[int]:
    """Delete a batch each time it is asked for the next, and give the number of rows."""
    with database.reading() as connection:
        numbers = device_numbers(connection)
    for table, horizon in horizons.items():
        for number in [None] if table is RAW else numbers:
            old = [table.c.time_s < horizon] + (
                [] if number is None else [table.c.device == number]
            )
            more = True
            while more:
                with database.writing() as connection:
                    rows, more = _delete_some(connection, table, old)
                if rows:
                    yield rows
                    time.sleep(PAUSE_S)


def _delete_some(
    connection: Connection, table: sa.Table, old: Sequence[sa.ColumnElement[bool]]
) -> tuple[int, bool]:
    """Delete the oldest of the rows that are `old`; how many, and whether some are left."""
    times = sa.select(table.c.time_s).where(*old).order_by(table.c.time_s).limit(1)
    first = connection.execute(times).scalar_one_or_none()
    if first is None:
        return 0, False
    border = connection.execute(times.offset(ROWS_AT_ONCE)).scalar_one_or_none()
    batch = [*old] if border is None else [*old, table.c.time_s < max(border, first + 1)]
    rows = connection.execute(table.delete().where(*batch)).rowcount
    return rows, border is not None
