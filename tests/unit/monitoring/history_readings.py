"""Readings and databases for tests of the history."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from drumline.database import Database, open_database
from drumline.database.tables import devices, hosts
from drumline.monitoring.readings import Job, Reading

T = 1_700_002_800  # a full hour
MIB = 2**20
UUIDS = ("GPU-0", "GPU-1", "GPU-2")


@contextmanager
def history_database(url: str, uuids: Iterable[str] = UUIDS) -> Iterator[Database]:
    """A database that knows some devices."""
    database = open_database(url)
    with database.writing() as connection:
        seen = {"first_seen_ms": 0, "last_seen_ms": 0}
        connection.execute(hosts.insert().values(id="one", name="one", inventory={}, **seen))
        for index, uuid in enumerate(uuids):
            row = {"uuid": uuid, "host_id": "one", "index": index, "simulated": False}
            connection.execute(devices.insert().values(**row, **seen))
    yield database
    database.close()


def reading(second: float, uuid: str = UUIDS[0], **fields: Any) -> Reading:
    """One reading, `second` after T."""
    return Reading(uuid, int((T + second) * 1000), **fields)


def chance_readings(seed: int, seconds: Iterable[int], uuids: Iterable[str]) -> list[Reading]:
    """Readings by chance, some fields of which are missing, on whole units of the database."""
    chance = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    return [
        reading(
            second,
            uuid,
            utilization_percent=float(chance.randint(0, 100)),
            memory_used_bytes=maybe(chance.randint(0, 80_000) * MIB),
            memory_total_bytes=81_920 * MIB,
            temperature_c=maybe(float(chance.randint(20, 95))),
            power_w=maybe(chance.randint(0, 7000) / 10),
            sm_clock_mhz=maybe(chance.randint(210, 1980)),
            memory_clock_mhz=chance.choice((1593, 2619)),
            throttle_reasons=chance.choice(((), ("power cap",), ("idle",), None)),
            job=chance.choice((None, Job("a"), Job("b"))),
        )
        for second in seconds
        for uuid in uuids
    ]


def rows(database: Database, table: sa.Table) -> list[tuple[Any, ...]]:
    """All rows of a table, in order of its key."""
    with database.reading() as connection:
        query = sa.select(table).order_by(*table.primary_key.columns)
        return [tuple(row) for row in connection.execute(query)]
