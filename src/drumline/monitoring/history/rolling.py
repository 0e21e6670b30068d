"""Rolling up: readings to 10 s, those to a minute, those to a quarter of an hour.

Each step works on from its mark in transactions that are short. What a transaction makes, it makes
whole: all buckets of its stretch are deleted and made anew, so doing it twice changes nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database import Database
from drumline.monitoring.history.marks import marks, set_mark
from drumline.monitoring.history.resolution import RAW, ROLLUPS, Rollup
from drumline.monitoring.history.stretches import device_numbers, first_time, within
from drumline.monitoring.history.summary import SUMMARY, job_of, rows_of, summary

GRACE_S = 10
"""So long after its end a bucket is rolled up; until then readings may still be on their way."""
BUCKETS_AT_ONCE = 90


def roll_up(database: Database, now_s: int) -> int:
    """Bring all rollups up to date; the number of rows made. See `History.roll_up`."""
    made = 0
    for rollup in ROLLUPS:
        rows: int | None = 0
        while rows is not None:
            with database.writing() as connection:
                rows = _next_stretch(connection, rollup, now_s - GRACE_S)
            made += rows or 0
    return made


def _next_stretch(connection: Connection, rollup: Rollup, until_s: int) -> int | None:
    """Roll up from the mark on; the number of rows made, None where nothing was left to do."""
    through = marks(connection, "alone")
    if rollup.source is not RAW:
        finer = next(other for other in ROLLUPS if other.table is rollup.source)
        until_s = min(until_s, through[finer.step_s])
    until_s -= until_s % rollup.step_s
    begin_s = through[rollup.step_s]
    if begin_s >= until_s:
        return None
    first_s = first_time(connection, rollup.source, begin_s, until_s)
    if first_s is None:
        set_mark(connection, rollup.step_s, until_s)
        return None
    begin_s = first_s - first_s % rollup.step_s
    end_s = min(begin_s + BUCKETS_AT_ONCE * rollup.step_s, until_s)
    made = _make(connection, rollup, begin_s, end_s)
    set_mark(connection, rollup.step_s, end_s)
    return made


def _make(connection: Connection, rollup: Rollup, begin_s: int, end_s: int) -> int:
    table, source = rollup.table, rollup.source
    numbers = device_numbers(connection)
    connection.execute(table.delete().where(*within(table, begin_s, end_s, numbers)))
    bucket = (source.c.time_s - source.c.time_s % rollup.step_s).label("bucket")
    query = (
        sa.select(bucket, source.c.device, job_of(source).label("job"), *summary(source))
        .select_from(rows_of(source))
        .where(*within(source, begin_s, end_s, numbers))
        .group_by("bucket", "device", "job")
    )
    names = ["time_s", "device", "job", *SUMMARY]
    insert = table.insert().from_select(names, query).execution_options(preserve_rowcount=True)
    return connection.execute(insert).rowcount
