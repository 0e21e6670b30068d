"""Rollups against the same sums done by hand over the readings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from history_readings import MIB, UUIDS, T, chance_readings, history_database, reading, rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drumline.database import Database
from drumline.database.tables import (
    gpu_metrics_1min,
    gpu_metrics_10s,
    gpu_metrics_15min,
    gpu_metrics_history,
    gpu_metrics_marks,
)
from drumline.monitoring.history import History
from drumline.monitoring.history.rolling import GRACE_S
from drumline.monitoring.readings import Reading, throttle_bits

STEPS = {10: gpu_metrics_10s, 60: gpu_metrics_1min, 900: gpu_metrics_15min}
JOBS = {None: 0, "a": 1, "b": 2}


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with history_database(database_url) as opened:
        yield opened


def by_hand(readings: list[Reading], step_s: int, until_s: int) -> dict[tuple[int, ...], Any]:
    """What each row must hold, by its key, from first principles."""
    groups: dict[tuple[int, int, str | None], list[Reading]] = defaultdict(list)
    for one in readings:
        bucket = one.time_ms // 1000 // step_s * step_s
        if bucket + step_s <= until_s:
            job = one.job.id if one.job else None
            groups[bucket, UUIDS.index(one.device_uuid) + 1, job].append(one)
    return {key: summed_up(group) for key, group in groups.items()}


def summed_up(group: list[Reading]) -> list[Any]:
    values: list[list[Any]] = [
        [one.utilization_percent for one in group],
        [one.memory_used_bytes and one.memory_used_bytes // MIB for one in group],
        [one.temperature_c for one in group],
        [None if one.power_w is None else round(one.power_w * 10) for one in group],
        [one.sm_clock_mhz for one in group],
        [one.memory_clock_mhz for one in group],
    ]
    bits = None
    for one in group:
        more = throttle_bits(one.throttle_reasons)
        bits = bits if more is None else (bits or 0) | more
    row = [len(group), 81_920, bits]
    for column in values:
        known = [value for value in column if value is not None]
        row += [min(known), sum(known), max(known), len(known)] if known else [None, None, None, 0]
    return row


def found(database: Database, step_s: int) -> dict[tuple[int, int, str | None], list[Any]]:
    with database.reading() as connection:
        jobs = connection.exec_driver_sql("SELECT id, job_id FROM gpu_metrics_jobs").all()
    names = {0: None, **dict(jobs)}
    return {(row[0], row[1], names[row[2]]): list(row[3:]) for row in rows(database, STEPS[step_s])}


def test_each_rollup_equals_sums_by_hand(database: Database) -> None:
    readings = chance_readings(7, range(-30, 2000), UUIDS[:2])
    history = History(database)
    history.write(readings)
    history.roll_up((T + 2000) * 1000)
    for step_s in STEPS:
        assert found(database, step_s) == by_hand(readings, step_s, T + 2000 - GRACE_S)


def test_a_bucket_is_rolled_up_when_it_is_over_and_its_readings_are_in(database: Database) -> None:
    history = History(database)
    history.write(chance_readings(1, range(25), UUIDS[:1]))
    for second, buckets in ((9 + GRACE_S, 0), (10 + GRACE_S, 1), (19 + GRACE_S, 1)):
        history.roll_up((T + second) * 1000 + 999)
        assert len({row[0] for row in rows(database, gpu_metrics_10s)}) == buckets


def test_borders_belong_to_the_bucket_that_begins_there(database: Database) -> None:
    history = History(database)
    seconds = [0, 9, 10, 19, 59, 60, 899, 900]
    history.write([reading(second, power_w=float(second)) for second in seconds])
    history.roll_up((T + 4000) * 1000)
    sums = {
        step_s: {row[0] - T: row[3 + 3 + 3 * 4 + 1] for row in rows(database, table)}
        for step_s, table in STEPS.items()
    }
    assert sums == {
        10: {0: 90, 10: 290, 50: 590, 60: 600, 890: 8990, 900: 9000},
        60: {0: 970, 60: 600, 840: 8990, 900: 9000},
        900: {0: 970 + 600 + 8990, 900: 9000},
    }


def test_twice_changes_nothing_and_makes_nothing(database: Database) -> None:
    history = History(database)
    history.write(chance_readings(3, range(1200), UUIDS))
    assert history.roll_up((T + 1300) * 1000) > 0
    before = [rows(database, table) for table in STEPS.values()]
    assert history.roll_up((T + 1300) * 1000) == 0
    assert [rows(database, table) for table in STEPS.values()] == before


def test_catching_up_after_a_pause_equals_never_having_paused(database: Database) -> None:
    readings = chance_readings(4, [*range(100), *range(90_000, 90_100)], UUIDS[:1])
    history = History(database)
    history.write(readings)
    history.roll_up((T + 95_000) * 1000)
    for step_s in STEPS:
        assert found(database, step_s) == by_hand(readings, step_s, T + 95_000)


def test_readings_that_come_late_are_rolled_up_again(database: Database) -> None:
    readings = chance_readings(5, range(2000), UUIDS[:2])
    late = [
        one for one in readings if one.device_uuid == UUIDS[1] and one.time_ms < (T + 905) * 1000
    ]
    history = History(database)
    history.write([one for one in readings if one not in late])
    history.roll_up((T + 3000) * 1000)
    history.write(late)
    history.roll_up((T + 3000) * 1000)
    for step_s in STEPS:
        assert found(database, step_s) == by_hand(readings, step_s, T + 3000 - GRACE_S)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=6), st.integers(0, 1000))
def test_any_order_of_writing_and_rolling_up_gives_the_same(
    database: Database, cuts: list[int], seed: int
) -> None:
    with database.writing() as connection:
        for table in (gpu_metrics_history, *STEPS.values()):
            connection.execute(table.delete())
        connection.execute(gpu_metrics_marks.update().values(through_s=0))
    readings = chance_readings(seed, range(0, 3000, 7), UUIDS[:2])
    history = History(database)
    begin = 0
    for cut in cuts:  # not sorted, so some parts come late
        end = cut * len(readings) // 3000
        history.write(readings[min(begin, end) : max(begin, end)])
        history.roll_up((T + cut) * 1000)
        begin = end
    history.write(readings)
    history.roll_up((T + 4000) * 1000)
    for step_s in STEPS:
        assert found(database, step_s) == by_hand(readings, step_s, T + 4000)
