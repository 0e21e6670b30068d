"""Deleting what is older than it is kept for, a little at a time.

Each transaction deletes a few thousand rows at the old end of a table, in the order of its key.
Between two of them is a pause in which whoever waits to write does so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.config.service import ServiceSettings
from drumline.database import Database
from drumline.monitoring.history.marks import CLEANED, marks, set_mark
from drumline.monitoring.history.resolution import COARSEST_S, ROLLUPS, kept_s

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
    for table, horizon in horizons.items():
        more = True
        while more:
            with database.writing() as connection:
                rows, more = _delete_some(connection, table, horizon)
            if rows:
                yield rows
                time.sleep(PAUSE_S)


def _delete_some(connection: Connection, table: sa.Table, horizon: int) -> tuple[int, bool]:
    """Rows deleted, and whether older ones than the horizon are left."""
    old = sa.select(table.c.time_s).where(table.c.time_s < horizon).order_by(table.c.time_s)
    first = connection.execute(old.limit(1)).scalar_one_or_none()
    if first is None:
        return 0, False
    border = connection.execute(old.limit(1).offset(ROWS_AT_ONCE)).scalar_one_or_none()
    end = horizon if border is None else max(border, first + 1)
    rows = connection.execute(table.delete().where(table.c.time_s < end)).rowcount
    return rows, border is not None
