"""Rows of one table summed up by device and bucket, as quickly as each engine can.

An ordinary GROUP BY makes SQLite sort all rows by way of a copy. Rollups are in the order of
devices and times already, only SQLite cannot know that buckets are too. It is told so by going
through the devices and the numbers of the buckets in the outer loops, with a small table of numbers
that each connection makes for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.monitoring.history.resolution import RAW
from drumline.monitoring.history.stretches import within
from drumline.monitoring.history.summary import job_of, rows_of, summary


@dataclass(frozen=True)
class Stretch:
    """What to read: a table from `begin_s` until before `end_s`, in buckets of `width_s` of which
    the first begins at `first_s`.
    """

    table: sa.Table
    begin_s: int
    end_s: int
    first_s: int
    width_s: int

    @property
    def buckets(self) -> tuple[int, int]:
        """The first bucket with a part of the stretch, and the one after the last."""
        begin, end = self.begin_s - self.first_s, self.end_s - self.first_s
        return begin // self.width_s, -(-end // self.width_s)


def read_buckets(
    connection: Connection, stretch: Stretch, numbers: Sequence[int], jobs: Sequence[int] | None
) -> Sequence[Any]:
    """Rows of device, bucket and `SUMMARY`; of certain jobs only where `jobs` says which."""
    in_loops = connection.dialect.name == "sqlite" and stretch.table is not RAW and jobs is None
    if not numbers:
        return []
    if in_loops:
        return _in_loops(connection, stretch, numbers)
    if connection.dialect.name == "postgresql":  # else it sorts on disk, of 4 MB by default
        connection.exec_driver_sql("SET LOCAL work_mem = '32MB'")
    return connection.execute(_grouped(stretch, numbers, jobs)).all()


def _grouped(
    stretch: Stretch, numbers: Sequence[int], jobs: Sequence[int] | None
) -> sa.Select[Any]:
    table = stretch.table
    bucket = ((table.c.time_s - stretch.first_s) // stretch.width_s).label("bucket")
    query = (
        sa.select(table.c.device, bucket, *summary(table))
        .select_from(rows_of(table))
        .where(*within(table, stretch.begin_s, stretch.end_s, numbers))
        .group_by("device", "bucket")
    )
    return query if jobs is None else query.where(job_of(table).in_(jobs))


def _in_loops(connection: Connection, stretch: Stretch, numbers: Sequence[int]) -> Sequence[Any]:
    first, after = stretch.buckets
    _have_numbers(connection, after)
    table = stretch.table
    summed_up = ", ".join(str(part.compile(connection)) for part in summary(table))
    devices = ", ".join(str(int(number)) for number in numbers)
    query = f"""
        SELECT devices.id, bucket_numbers.n, {summed_up}
        FROM devices CROSS JOIN bucket_numbers CROSS JOIN {table.name}
        WHERE devices.id IN ({devices}) AND n >= :first AND n < :after
          AND device = devices.id
          AND time_s >= max(:first_s + n * :width_s, :begin_s)
          AND time_s < min(:first_s + (n + 1) * :width_s, :end_s)
        GROUP BY devices.id, bucket_numbers.n
    """
    values = {
        "first": first,
        "after": after,
        "first_s": stretch.first_s,
        "width_s": stretch.width_s,
        "begin_s": stretch.begin_s,
        "end_s": stretch.end_s,
    }
    driver: Any = connection.connection.driver_connection  # thousands of plain tuples, no more
    rows: list[tuple[Any, ...]] = driver.execute(query, values).fetchall()
    return rows


def _have_numbers(connection: Connection, count: int) -> None:
    """See that this connection's table of numbers goes from 0 to `count` at least."""
    make = "CREATE TEMP TABLE IF NOT EXISTS bucket_numbers (n INTEGER PRIMARY KEY)"
    connection.exec_driver_sql(make)
    most = "SELECT coalesce(max(n), -1) FROM bucket_numbers"
    there = connection.exec_driver_sql(most).scalar_one()
    if there < count:
        numbers = [(n,) for n in range(there + 1, count + 1)]
        connection.exec_driver_sql("INSERT INTO bucket_numbers VALUES (?)", numbers)
