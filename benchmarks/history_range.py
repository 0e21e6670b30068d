"""Range queries on a full history: 30 days of 8 devices in 500 points each, and the bytes of a day.

    python benchmarks/history_range.py                                     # SQLite, in a new folder
    python benchmarks/history_range.py postgresql+psycopg://me@host/empty  # an empty database

First the bytes of a day: two hours of readings are written as the service writes them, two seconds
in a transaction, with all devices at work and with a mixture of loads. On SQLite the pages of the
table are counted, on PostgreSQL its indexes too. Then the tables are filled with what the service
has after a year: 48 hours of single readings at 1 Hz, 30 days of rollups of 10 s and 1 min, a year
of 15 min. Times are those of `History.range` in this process, after three that are not counted;
each query ends at another time. All takes two minutes. Rows, as CSV, come last. Needs a quiet
machine.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import sqlalchemy as sa

from drumline.database import Database, open_database
from drumline.database.migrate import upgrade
from drumline.database.tables import (
    devices,
    gpu_metrics_1min,
    gpu_metrics_10s,
    gpu_metrics_15min,
    gpu_metrics_history,
    gpu_metrics_marks,
    gpu_metrics_states,
)
from drumline.database.tables.history import ROLLED_UP
from drumline.hardware import Machine
from drumline.hardware.providers.simulated import SimulatedProvider
from drumline.monitoring.history import History
from drumline.monitoring.inventory import Inventory
from drumline.monitoring.readings import readings_of

DEVICES, DAY_S, POINTS = 8, 86_400, 500
NOW_S = 1_795_824_000
QUERIES, WARM_UP = 60, 3
RANGES = {"30 days": 30 * DAY_S, "1 day": DAY_S, "1 hour": 3600, "15 minutes": 900}
KEPT_DAYS = {gpu_metrics_10s: 30, gpu_metrics_1min: 30, gpu_metrics_15min: 365}
STEPS = {gpu_metrics_10s: 10, gpu_metrics_1min: 60, gpu_metrics_15min: 900}


def readings(begin_s: int, seconds: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Columns time, device, state, utilization, MiB, °C, dW, MHz: devices at work, one row a second
    and device in order of time.
    """
    random = np.random.default_rng(begin_s)
    time_s = np.repeat(np.arange(begin_s, begin_s + seconds), DEVICES)
    device = np.tile(np.arange(1, DEVICES + 1), seconds)
    noise = random.integers(0, 8, (5, len(time_s)))
    load = 0.6 + 0.3 * np.sin(time_s / 1800 + device)
    columns = [
        time_s,
        device,
        1 + (noise[0] == 0),
        (100 * load).astype(int) + noise[0],
        (70_000 * load).astype(int) + noise[1],
        (30 + 45 * load).astype(int) + noise[2],
        (6500 * load).astype(int) + 10 * noise[3],
        1980 - 15 * noise[4],
    ]
    return np.stack(columns, axis=1)


def rollups(step_s: int, begin_s: int, seconds: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of a rollup whose readings have what `readings` has at the bucket's begin."""
    rows = readings(begin_s, seconds // step_s)
    rows[:, 0] = begin_s + (rows[:, 0] - begin_s) * step_s
    ones = np.ones(len(rows), dtype=np.int64)
    parts = [rows[:, 0], rows[:, 1], 0 * ones, step_s * ones, 81_559 * ones, 4 * (rows[:, 2] - 1)]
    for place in range(len(ROLLED_UP)):
        mean = rows[:, 3 + place] if place < len(ROLLED_UP) - 1 else 2619 * ones
        parts += [mean - mean // 20, mean * step_s + 3, mean + mean // 20, step_s * ones]
    return np.stack(parts, axis=1)


def copy(database: Database, table: sa.Table, rows: np.ndarray[Any, Any]) -> None:
    """Put rows in by the quickest way each engine has."""
    connection = database.engine.raw_connection()
    cursor = connection.cursor()
    if database.is_sqlite:
        marks = ",".join("?" * rows.shape[1])
        cursor.execute("BEGIN IMMEDIATE")
        cursor.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows.tolist())
        cursor.execute("COMMIT")
    else:
        with cursor.copy(f"COPY {table.name} FROM STDIN") as pipe:
            pipe.write("".join("\t".join(map(str, row)) + "\n" for row in rows.tolist()))
        connection.commit()
    connection.close()


def written_mb_a_day(database: Database, pattern: str) -> float:
    """Of single readings, from two hours of simulated devices."""
    ticks = iter(range(10**6))
    provider = SimulatedProvider(f"{DEVICES}xH100:{pattern}", clock=lambda: float(next(ticks)))
    Inventory(database).record(Machine.probe(provider), NOW_S * 1000)
    history, batch = History(database), []
    for second in range(7200):
        batch += readings_of(provider.sample(), (NOW_S + second) * 1000)
        if second % 2:
            history.write(batch)
            batch = []
    mb = bytes_a_day(database, gpu_metrics_history, 7200 / DAY_S) / 1e6
    empty = "DELETE FROM" if database.is_sqlite else "TRUNCATE"
    with database.writing() as connection:
        connection.exec_driver_sql(f"{empty} {gpu_metrics_history.name}")
        for table in (gpu_metrics_states, devices):
            connection.execute(table.delete())
    return mb


def stretches(begin_s: int, end_s: int, length_s: int) -> Iterator[tuple[int, int]]:
    for begin in range(begin_s, end_s, length_s):
        yield begin, min(length_s, end_s - begin)


def fill(database: Database) -> list[str]:
    """A full history; the devices' UUIDs."""
    machine = Machine.probe(simulate=f"{DEVICES}xH100:steady")
    Inventory(database).record(machine, NOW_S * 1000)
    with database.writing() as connection:
        first = connection.execute(sa.select(sa.func.min(devices.c.id))).scalar_one()
        connection.execute(devices.update().values(id=devices.c.id - first + 1))
        state = {"memory_total_mib": 81_559, "memory_clock_mhz": 2619, "job": 0}
        for place, bits in enumerate((0, 4)):
            values = {**state, "id": 1 + place, "throttle_bits": bits}
            connection.execute(gpu_metrics_states.insert().values(**values))
    for begin, length in stretches(NOW_S - 2 * DAY_S, NOW_S, DAY_S // 4):
        copy(database, gpu_metrics_history, readings(begin, length))
    for table, days in KEPT_DAYS.items():
        for begin, length in stretches(NOW_S - days * DAY_S, NOW_S, 30_000 * STEPS[table]):
            copy(database, table, rollups(STEPS[table], begin, length))
    with database.writing() as connection:
        for step_s in STEPS.values():
            mark = gpu_metrics_marks.update().where(gpu_metrics_marks.c.step_s == step_s)
            connection.execute(mark.values(through_s=NOW_S - NOW_S % step_s))
    settle(database)
    with database.reading() as connection:
        return list(connection.execute(sa.select(devices.c.uuid).order_by(devices.c.id)).scalars())


def settle(database: Database) -> None:
    """What each engine does by itself after a while."""
    with database.engine.connect() as connection:
        plain = connection.execution_options(isolation_level="AUTOCOMMIT")
        if database.is_sqlite:
            plain.exec_driver_sql("COMMIT")
            plain.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            plain.exec_driver_sql("BEGIN")
        else:
            plain.exec_driver_sql("VACUUM ANALYZE")


def bytes_a_day(database: Database, table: sa.Table, days: float) -> int:
    with database.reading() as connection:
        if database.is_sqlite:
            query = "SELECT sum(pgsize) FROM dbstat WHERE name = ?"
            size = connection.exec_driver_sql(query, (table.name,)).scalar_one()
        else:
            query = "SELECT pg_total_relation_size(%s::regclass)"
            size = connection.exec_driver_sql(query, (table.name,)).scalar_one()
    return int(size / days)


def versions(database: Database) -> str:
    with database.reading() as connection:
        query = "SELECT sqlite_version()" if database.is_sqlite else "SHOW server_version"
        version = connection.exec_driver_sql(query).scalar_one().split()[0]
    name = "SQLite" if database.is_sqlite else "PostgreSQL"
    return f"{name} {version};SQLAlchemy {sa.__version__};Python {platform.python_version()}"


def cpu() -> str:
    with open("/proc/cpuinfo") as lines:  # noqa: PTH123
        return next(line for line in lines if line.startswith("model name")).split(": ")[1].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", help="an empty database; SQLite in a new folder if none")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    options = parser.parse_args()
    url = options.url
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(url or f"sqlite:///{folder}/history.db")
        upgrade(database)
        patterns = {"all at work": "steady", "mixed loads": "mixed"}
        sizes = {what: written_mb_a_day(database, name) for what, name in patterns.items()}
        began = time.perf_counter()
        uuids = fill(database)
        print(f"filled in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        report(database, uuids, sizes, options.note)
        database.close()


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def report(database: Database, uuids: list[str], sizes: dict[str, float], note: str) -> None:
    tail = f"{cpu()},{versions(database)},{datetime.now(UTC):%Y-%m-%d},{commit()}"
    tail += f",python benchmarks/history_range.py{'' if database.is_sqlite else ' URL'},{note}"
    print("what,devices,value,unit,points,resolution_s,cpu,versions,date,commit,command,note")
    for what, mb in sizes.items():
        print(f"readings of {what},{DEVICES},{mb:.2f},MB/day,,1,{tail}")
    for table, days in KEPT_DAYS.items():
        mb = bytes_a_day(database, table, days) / 1e6
        print(f"{table.name},{DEVICES},{mb:.2f},MB/day,,{STEPS[table]},{tail}")
    for name, span_s in RANGES.items():
        times_ms, points, resolution_s = measure(database, uuids, span_s)
        for percent in (50, 95):
            value = f"{np.percentile(times_ms, percent):.1f},ms"
            print(f"range of {name} p{percent},{DEVICES},{value},{points},{resolution_s},{tail}")


def measure(database: Database, uuids: list[str], span_s: int) -> tuple[list[float], int, int]:
    history = History(database)
    times_ms = []
    for place in range(WARM_UP + QUERIES):
        to_ms = (NOW_S - 61 * place) * 1000
        began = time.perf_counter()
        series = history.range(uuids, to_ms - span_s * 1000, to_ms, POINTS)
        times_ms.append(1000 * (time.perf_counter() - began))
    assert all(any(device.readings) for device in series.devices)
    return times_ms[WARM_UP:], len(series.times_ms), series.resolution_s


if __name__ == "__main__":
    main()
