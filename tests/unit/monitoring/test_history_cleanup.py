"""Cleaning up: what goes, what stays, and that whoever writes gets his turn."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from history_readings import UUIDS, T, chance_readings, history_database, reading, rows

from drumline.config.service import ServiceSettings
from drumline.database import Database, open_database
from drumline.database.tables import (
    gpu_metrics_1min,
    gpu_metrics_10s,
    gpu_metrics_15min,
    gpu_metrics_history,
)
from drumline.monitoring.history import History, cleaning

DAY_S = 86_400
SETTINGS = ServiceSettings(raw_days=2, minute_days=30, quarter_days=365)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with history_database(database_url) as opened:
        yield opened


def oldest_days(database: Database, now_s: int) -> list[float | None]:
    """How old the oldest row of each table is, in days."""
    tables = (gpu_metrics_history, gpu_metrics_10s, gpu_metrics_1min, gpu_metrics_15min)
    with database.reading() as connection:
        times = [connection.execute(sa.select(sa.func.min(t.c.time_s))).scalar() for t in tables]
    return [None if time is None else (now_s - time) / DAY_S for time in times]


def test_each_table_keeps_what_its_setting_says(database: Database) -> None:
    history = History(database)
    days = (0, 33, 34, 35, 368, 369, 370, 396, 397, 398)
    history.write([reading(day * DAY_S, power_w=1.0) for day in days])
    now_s = T + 399 * DAY_S
    history.roll_up((now_s + 2000) * 1000)
    history.clean_up(now_s * 1000, SETTINGS)
    assert oldest_days(database, now_s) == [2.0, 30.0, 30.0, 365.0]


def test_what_is_not_rolled_up_stays(database: Database) -> None:
    history = History(database)
    history.write(chance_readings(1, range(100), UUIDS))
    assert history.clean_up((T + 400 * DAY_S) * 1000, SETTINGS) == 0
    assert len(rows(database, gpu_metrics_history)) == 300


def test_no_bucket_is_made_anew_of_a_part_of_its_readings(database: Database) -> None:
    """Readings that come after those beside them are deleted are refused, not rolled up alone."""
    history = History(database)
    history.write([reading(second, "GPU-0", power_w=1.0) for second in range(1800)])
    now_ms = (T + 3 * DAY_S) * 1000
    history.roll_up(now_ms)
    history.clean_up(now_ms, SETTINGS)
    before = [rows(database, t) for t in (gpu_metrics_10s, gpu_metrics_1min, gpu_metrics_15min)]
    late = [reading(second, "GPU-1", power_w=9.0) for second in range(1800)]
    assert history.write(late) == 0
    history.roll_up(now_ms)
    after = [rows(database, t) for t in (gpu_metrics_10s, gpu_metrics_1min, gpu_metrics_15min)]
    assert after == before


def test_it_stops_after_as_many_batches_as_wanted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "ROWS_AT_ONCE", 100)
    monkeypatch.setattr(cleaning, "PAUSE_S", 0)
    history = History(database)
    history.write(chance_readings(1, range(350), UUIDS[:2]))
    now_ms = (T + 3 * DAY_S) * 1000
    history.roll_up(now_ms)
    counts = [history.clean_up(now_ms, SETTINGS, batches=1) for _ in range(8)]
    assert counts == [100] * 7 + [0]


def test_a_second_with_more_rows_than_a_batch_is_deleted_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(cleaning, "PAUSE_S", 0)
    history = History(database)
    history.write(chance_readings(1, range(3), UUIDS))
    now_ms = (T + 3 * DAY_S) * 1000
    history.roll_up(now_ms)
    assert history.clean_up(now_ms, SETTINGS) == 9


def test_no_write_waits_longer_than_one_batch(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of each batch a writer asks to write. On SQLite it has written before the next
    batch begins, although there is no pause; on PostgreSQL before this one ends.
    """
    monkeypatch.setattr(cleaning, "ROWS_AT_ONCE", 100)
    monkeypatch.setattr(cleaning, "PAUSE_S", 0)
    history = History(database)
    history.write(chance_readings(1, range(2000), UUIDS[:1]))
    now_ms = (T + 3 * DAY_S) * 1000
    history.roll_up(now_ms)
    asked, written = threading.Semaphore(0), threading.Semaphore(0)
    batches = 0
    delete_some = cleaning._delete_some

    def watched(*arguments: Any) -> tuple[int, bool]:
        nonlocal batches
        if database.is_sqlite and batches:
            assert written.acquire(blocking=False)  # the write of the batch before
        batches += 1
        result = delete_some(*arguments)
        asked.release()
        if database.is_sqlite:
            assert database.turns.wait_for_waiting(1, timeout_s=60)
        else:
            assert written.acquire(timeout=60)
        return result

    def write() -> None:
        for second in range(20):
            asked.acquire()
            history.write([reading(3 * DAY_S + second, power_w=1.0)])
            written.release()

    monkeypatch.setattr(cleaning, "_delete_some", watched)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert history.clean_up(now_ms, SETTINGS, batches=20) == 2000
    writer.join(60)
    assert batches == 20 and not writer.is_alive()


WRITER = """
import sys
from drumline.database import open_database
from drumline.monitoring.history import History
from drumline.monitoring.readings import Reading
history = History(open_database(sys.argv[1]))
begin = int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for second in range(40):
    history.write([Reading("GPU-1", 1000 * (begin + second), power_w=1.0)])
print("done", flush=True)
"""


def test_another_process_writes_between_the_batches(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its writes come through long before the clean-up, which would go on for minutes, ends."""
    monkeypatch.setattr(cleaning, "ROWS_AT_ONCE", 5)
    with history_database(sqlite_url) as database:
        history = History(database)
        history.write(chance_readings(1, range(5000), UUIDS[:1]))
        now_ms = (T + 3 * DAY_S) * 1000
        history.roll_up(now_ms)
        arguments = [sys.executable, "-c", WRITER, sqlite_url, str(T + 3 * DAY_S)]
        writer = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdin and writer.stdout and writer.stdout.readline() == "ready\n"
        writer.stdin.write("go\n")
        writer.stdin.flush()
        while writer.poll() is None:
            assert history.clean_up(now_ms, SETTINGS, batches=2) == 10
        assert writer.stdout.read() == "done\n" and writer.returncode == 0
        other = open_database(sqlite_url)
        with other.reading() as connection:
            query = "SELECT count(*) FROM gpu_metrics_history WHERE device = 2"
            assert connection.exec_driver_sql(query).scalar_one() == 40
