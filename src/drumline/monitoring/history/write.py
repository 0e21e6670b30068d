"""Readings into the database: scaled to whole numbers, many in one statement."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from drumline.database import Database
from drumline.database.tables import (
    devices,
    gpu_metrics_history,
    gpu_metrics_jobs,
    gpu_metrics_states,
)
from drumline.monitoring.history.marks import CLEANED, marks, set_mark
from drumline.monitoring.history.resolution import ROLLUPS
from drumline.monitoring.readings import Job, Reading, throttle_bits

MIB = 2**20
NO_JOB = 0
_State = tuple[int | None, int | None, int | None, int]


class ReadingsWriter:
    """Writes readings, and remembers the numbers of devices, jobs and states.

    Safe to share among threads.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._devices: dict[str, int] = {}
        self._jobs: dict[Job, int] = {}
        self._states: dict[_State, int] = {}

    def write(self, readings: Iterable[Reading]) -> int:
        """Write readings in one transaction; how many were new. See `History.write`."""
        told = [reading for reading in readings if reading.tells_something]
        if not told:
            return 0
        with self._lock, self._database.writing() as connection:
            try:
                return self._insert(connection, told)
            except BaseException:
                self._forget()  # what was numbered in this transaction is undone
                raise

    def _insert(self, connection: Connection, readings: Sequence[Reading]) -> int:
        through = marks(connection, "share")
        self._learn_devices(connection, {reading.device_uuid for reading in readings})
        rows = [
            self._row(connection, reading)
            for reading in readings
            if reading.device_uuid in self._devices and reading.time_ms // 1000 >= through[CLEANED]
        ]
        if not rows:
            return 0
        _lower_marks(connection, min(row["time_s"] for row in rows), through)
        return _insert_new(connection, rows)

    def _row(self, connection: Connection, reading: Reading) -> dict[str, Any]:
        job = NO_JOB if reading.job is None else self._job(connection, reading.job)
        state = (
            _mib(reading.memory_total_bytes),
            reading.memory_clock_mhz,
            throttle_bits(reading.throttle_reasons),
            job,
        )
        return {
            "time_s": reading.time_ms // 1000,
            "device": self._devices[reading.device_uuid],
            "state": self._state(connection, state),
            "utilization_percent": _whole(reading.utilization_percent),
            "memory_used_mib": _mib(reading.memory_used_bytes),
            "temperature_c": _whole(reading.temperature_c),
            "power_dw": None if reading.power_w is None else round(reading.power_w * 10),
            "sm_clock_mhz": reading.sm_clock_mhz,
        }

    def _learn_devices(self, connection: Connection, uuids: set[str]) -> None:
        missing = uuids - self._devices.keys()
        if missing:
            query = sa.select(devices.c.uuid, devices.c.id).where(devices.c.uuid.in_(missing))
            self._devices.update({row.uuid: row.id for row in connection.execute(query)})

    def _job(self, connection: Connection, job: Job) -> int:
        if job not in self._jobs:
            table = gpu_metrics_jobs
            values = {"job_id": job.id, "job_type": job.type}
            self._jobs[job] = _number(connection, table, values)
        return self._jobs[job]

    def _state(self, connection: Connection, state: _State) -> int:
        if state not in self._states:
            names = ("memory_total_mib", "memory_clock_mhz", "throttle_bits", "job")
            values = dict(zip(names, state, strict=True))
            self._states[state] = _number(connection, gpu_metrics_states, values)
        return self._states[state]

    def _forget(self) -> None:
        self._devices.clear()
        self._jobs.clear()
        self._states.clear()


def _number(connection: Connection, table: sa.Table, values: dict[str, Any]) -> int:
    """The id of the row with these values, made where there is none."""
    same = [table.c[name].is_not_distinct_from(value) for name, value in values.items()]
    query = sa.select(sa.func.min(table.c.id)).where(*same)
    found: int | None = connection.execute(query).scalar_one()
    if found is not None:
        return found
    made: int = connection.execute(table.insert().returning(table.c.id), values).scalar_one()
    return made


def _lower_marks(connection: Connection, oldest_s: int, through: dict[int, int]) -> None:
    """Have readings that came late rolled up again."""
    for rollup in ROLLUPS:
        bucket = oldest_s - oldest_s % rollup.step_s
        if through[rollup.step_s] > bucket:
            set_mark(connection, rollup.step_s, bucket)


def _insert_new(connection: Connection, rows: list[dict[str, Any]]) -> int:
    """Insert those whose device and second are not there yet."""
    postgres = connection.dialect.name == "postgresql"
    dialect: Any = postgresql if postgres else sqlite
    insert = dialect.insert(gpu_metrics_history).on_conflict_do_nothing()
    return connection.execute(insert.execution_options(preserve_rowcount=True), rows).rowcount


def _mib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else round(size_bytes / MIB)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
