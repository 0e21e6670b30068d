"""Stretches of time in the history's tables, found by their keys.

Readings are in order of time, rollups device by device: of these each device is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import devices
from drumline.monitoring.history.resolution import RAW


def device_numbers(connection: Connection) -> list[int]:
    """All devices, by their numbers."""
    return list(connection.execute(sa.select(devices.c.id).order_by(devices.c.id)).scalars())


def within(
    table: sa.Table, begin_s: int, end_s: int, numbers: Sequence[int]
) -> list[sa.ColumnElement[bool]]:
    """That a row is of one of the devices, and from `begin_s` until before `end_s`."""
    time_s = table.c.time_s
    return [time_s >= begin_s, time_s < end_s, table.c.device.in_(numbers)]


def first_time(
    connection: Connection, table: sa.Table, begin_s: int = 0, end_s: int | None = None
) -> int | None:
    """The time of the first row of a stretch; None where there is none."""
    found = sa.select(table.c.time_s).where(table.c.time_s >= begin_s)
    if end_s is not None:
        found = found.where(table.c.time_s < end_s)
    found = found.order_by(table.c.time_s).limit(1)
    if table is RAW:
        return connection.execute(found).scalar_one_or_none()
    of_device = found.where(table.c.device == devices.c.id).correlate(devices).scalar_subquery()
    each = sa.select(of_device.label("time_s")).select_from(devices).subquery()
    earliest: int | None = connection.execute(sa.select(sa.func.min(each.c.time_s))).scalar_one()
    return earliest
