"""Readings in the database: what is kept, what is left out, and that nothing is kept twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from history_readings import MIB, T, chance_readings, history_database, reading, rows

from drumline.database import Database, DatabaseError
from drumline.database.tables import gpu_metrics_history, gpu_metrics_jobs, gpu_metrics_states
from drumline.monitoring.history import History
from drumline.monitoring.readings import Job


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with history_database(database_url) as opened:
        yield opened


def test_units_are_those_of_the_columns(database: Database) -> None:
    one = reading(
        0.4,
        utilization_percent=97.4,
        memory_used_bytes=61_004 * MIB,
        memory_total_bytes=81_559 * MIB,
        temperature_c=63.0,
        power_w=698.73,
        sm_clock_mhz=1665,
        memory_clock_mhz=2619,
        throttle_reasons=("power cap", "software thermal slowdown"),
        job=Job("t-1", "training"),
    )
    assert History(database).write([one]) == 1
    assert rows(database, gpu_metrics_history) == [(T, 1, 1, 97, 61_004, 63, 6987, 1665)]
    assert rows(database, gpu_metrics_states) == [(1, 81_559, 2619, 0x24, 1)]
    assert rows(database, gpu_metrics_jobs) == [(1, "t-1", "training")]


def test_what_is_not_reported_is_null_and_zero_is_zero(database: Database) -> None:
    History(database).write(
        [
            reading(0, temperature_c=40.0),
            reading(1, utilization_percent=0.0, power_w=0.0, throttle_reasons=()),
        ]
    )
    assert rows(database, gpu_metrics_history) == [
        (T, 1, 1, None, None, 40, None, None),
        (T + 1, 1, 2, 0, None, None, 0, None),
    ]
    assert rows(database, gpu_metrics_states) == [(1, None, None, None, 0), (2, None, None, 0, 0)]


def test_a_reading_of_nothing_is_no_row(database: Database) -> None:
    lost = reading(0, lost=True, problem="The device has fallen off the bus.")
    assert History(database).write([lost]) == 0
    assert rows(database, gpu_metrics_history) == []


def test_an_unknown_device_is_left_out_until_it_is_known(database: Database) -> None:
    history = History(database)
    both = [reading(0, "GPU-new", power_w=1.0), reading(0, "GPU-2", power_w=1.0)]
    assert history.write(both) == 1
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE devices SET uuid = 'GPU-new' WHERE uuid = 'GPU-1'")
    assert history.write(both) == 1
    assert [row[1] for row in rows(database, gpu_metrics_history)] == [2, 3]


def test_one_reading_a_second_and_device_the_first(database: Database) -> None:
    history = History(database)
    assert history.write([reading(0.1, power_w=1.0), reading(0.6, power_w=2.0)]) == 1
    assert history.write([reading(0.3, power_w=3.0), reading(1.0, power_w=4.0)]) == 1
    assert [row[6] for row in rows(database, gpu_metrics_history)] == [10, 40]


def test_two_writers_share_jobs_and_states(database: Database) -> None:
    some = chance_readings(1, range(50), ["GPU-0", "GPU-1"])
    History(database).write(some[:50])
    History(database).write(some[50:])
    states = [row[1:] for row in rows(database, gpu_metrics_states)]
    assert len(states) == len(set(states)) == 2 * 4 * 3  # clocks, throttle reasons, jobs
    assert {row[1] for row in rows(database, gpu_metrics_jobs)} == {"a", "b"}


def test_what_was_undone_is_not_taken_for_written(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drumline.monitoring.history import write

    history = History(database)

    def full(*_: object) -> int:
        raise DatabaseError("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(write, "_insert_new", full)
        with pytest.raises(DatabaseError):
            history.write([reading(0, power_w=1.0, job=Job("a"))])
    assert history.write([reading(0, power_w=1.0, job=Job("a"))]) == 1
    assert len(rows(database, gpu_metrics_jobs)) == len(rows(database, gpu_metrics_states)) == 1
