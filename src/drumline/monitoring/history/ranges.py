"""Range queries: which rows are read for how many points, and their way onto one time axis.

The coarsest rollup that gives at least half the points wanted is read up to where it is made; what
came since is read from finer ones, at last from single readings. Buckets lie on whole multiples of
their width, so that a window that moves on keeps the points it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database import Database
from drumline.database.tables import devices, gpu_metrics_jobs
from drumline.errors import BadInput
from drumline.monitoring.history.buckets import Stretch, read_buckets
from drumline.monitoring.history.grid import Grid
from drumline.monitoring.history.marks import marks
from drumline.monitoring.history.resolution import COARSEST_S, RAW, ROLLUPS
from drumline.monitoring.history.series import Series
from drumline.monitoring.history.stretches import first_time

MOST_POINTS = 10_000


class RangeError(BadInput):
    """A range of the history that cannot be shown."""

    code = "bad_range"


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Raises:
        RangeError: If the range is empty, or the number of points cannot be had.
    """

    device_uuids: tuple[str, ...]
    from_ms: int
    to_ms: int
    points: int
    job_id: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.from_ms < self.to_ms:
            raise RangeError(
                f"From {self.from_ms} to {self.to_ms} ms is no range.",
                remedy="Let `from` be before `to`.",
                from_ms=self.from_ms,
                to_ms=self.to_ms,
            )
        if not 2 <= self.points <= MOST_POINTS:
            raise RangeError(
                f"{self.points} points cannot be had.",
                remedy=f"Ask for 2 to {MOST_POINTS:,}.",
                points=self.points,
            )


@dataclass(frozen=True)
class Axis:
    """Buckets of `width_s` from `first_s` on."""

    first_s: int
    width_s: int
    count: int

    @property
    def end_s(self) -> int:
        """The end of the last bucket."""
        return self.first_s + self.count * self.width_s


def read_range(database: Database, wanted: Wanted, sample_every_s: int) -> Series:
    """See `History.range`."""
    with database.reading() as connection:
        numbers = _device_numbers(connection, wanted.device_uuids)
        step_s = _resolution(connection, wanted, sample_every_s)
        axis = _axis(wanted, max(step_s, sample_every_s))
        grid = Grid([numbers.get(uuid) for uuid in wanted.device_uuids], axis.count)
        jobs = _job_numbers(connection, wanted.job_id)
        for table, begin_s, end_s in _segments(connection, step_s, axis):
            stretch = Stretch(table, begin_s, end_s, axis.first_s, axis.width_s)
            grid.add(read_buckets(connection, stretch, sorted(numbers.values()), jobs))
    return Series(
        wanted.from_ms,
        wanted.to_ms,
        axis.width_s * 1000,
        step_s,
        tuple(range(axis.first_s * 1000, axis.end_s * 1000, axis.width_s * 1000)),
        grid.series(wanted.device_uuids),
    )


def _axis(wanted: Wanted, step_s: int) -> Axis:
    """The narrowest buckets, of whole steps, that need no more points than wanted."""
    from_s, to_s = wanted.from_ms // 1000, -(-wanted.to_ms // 1000)
    width_s = -(-(to_s - from_s) // (wanted.points * step_s)) * step_s
    while True:  # once or twice: buckets on whole multiples may need one more than the span does
        first_s = from_s - from_s % width_s
        count = -(-(to_s - first_s) // width_s)
        if count <= wanted.points:
            return Axis(first_s, width_s, count)
        width_s += step_s


def _resolution(connection: Connection, wanted: Wanted, sample_every_s: int) -> int:
    """The step of the rows to read: the coarsest that gives half the points wanted or more.

    Where such rows of the range's begin are deleted already, a coarser one that still has them.
    """
    span_s = (wanted.to_ms - wanted.from_ms) / 1000
    tables = {1: RAW} | {r.step_s: r.table for r in ROLLUPS if r.step_s >= sample_every_s}
    fine_enough = max(step for step in tables if step == 1 or step <= 2 * span_s / wanted.points)
    reach, oldest = {}, None
    for step, table in tables.items():
        own = first_time(connection, table)
        oldest = own if oldest is None else min(oldest, own if own is not None else oldest)
        reach[step] = oldest  # with the finer rows that are read for what is not rolled up yet
    if oldest is None:
        return fine_enough
    needed_s = max(wanted.from_ms // 1000, oldest + COARSEST_S)
    reaching = [s for s in tables if s >= fine_enough and (reach[s] or needed_s) <= needed_s]
    return min(reaching, default=max(tables))


def _segments(connection: Connection, step_s: int, axis: Axis) -> list[tuple[sa.Table, int, int]]:
    """Tables with the begin and end of what is read from each, the coarsest first."""
    through = marks(connection)
    coarse = [rollup for rollup in reversed(ROLLUPS) if rollup.step_s <= step_s]
    borders = [axis.first_s]
    for rollup in coarse:
        border = min(through[rollup.step_s], axis.end_s)
        borders.append(max(borders[-1], border))
    borders.append(axis.end_s)
    tables = [*(rollup.table for rollup in coarse), RAW]
    stretches = zip(tables, pairwise(borders), strict=True)
    return [(table, begin, end) for table, (begin, end) in stretches if begin < end]


def _device_numbers(connection: Connection, uuids: Sequence[str]) -> dict[str, int]:
    query = sa.select(devices.c.uuid, devices.c.id).where(devices.c.uuid.in_(uuids))
    return {row.uuid: row.id for row in connection.execute(query)}


def _job_numbers(connection: Connection, job_id: str | None) -> list[int] | None:
    if job_id is None:
        return None
    query = sa.select(gpu_metrics_jobs.c.id).where(gpu_metrics_jobs.c.job_id == job_id)
    return list(connection.execute(query).scalars())
