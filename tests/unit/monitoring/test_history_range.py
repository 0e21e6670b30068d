"""Range queries against sums by hand over the readings, whatever tables they come from."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import pytest
from history_readings import MIB, UUIDS, T, chance_readings, history_database, reading

from drumline.config.service import ServiceSettings
from drumline.database import Database
from drumline.monitoring.history import DeviceSeries, History, Series, aggregate_series
from drumline.monitoring.history.ranges import RangeError
from drumline.monitoring.readings import Job, Reading

METRICS = (
    "utilization_percent",
    "memory_used_bytes",
    "temperature_c",
    "power_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with history_database(database_url) as opened:
        yield opened


def ask(history: History, begin: float, end: float, points: int, **options: Any) -> Series:
    times = (int((T + second) * 1000) for second in (begin, end))
    return history.range(UUIDS[:2], *times, points, **options)


def check_by_hand(series: Series, readings: list[Reading]) -> None:
    """Every bucket of every device and metric."""
    for device in series.devices:
        for place, begin_ms in enumerate(series.times_ms):
            inside = [
                one
                for one in readings
                if one.device_uuid == device.device_uuid
                and begin_ms <= one.time_ms < begin_ms + series.bucket_ms
            ]
            assert device.readings[place] == len(inside)
            for metric in METRICS:
                check_bucket(device, metric, place, inside)


def check_bucket(device: DeviceSeries, metric: str, place: int, inside: list[Reading]) -> None:
    known = [value for one in inside if (value := getattr(one, metric)) is not None]
    band = device.metrics[metric]
    got = (band.min[place], band.mean[place], band.max[place])
    if known:
        assert got == pytest.approx((min(known), fmean(known), max(known)), rel=1e-12)
    else:
        assert got == (None, None, None)


@pytest.mark.parametrize(
    ("span", "points", "resolution_s", "bucket_s"),
    [
        (100, 100, 1, 1),
        (100, 50, 1, 2),
        (1000, 200, 10, 10),
        (1000, 33, 60, 60),
        (3600, 60, 60, 60),
        (3600, 4, 900, 900),
        (3600, 2, 900, 1800),
    ],
)
def test_points_choose_resolution_and_buckets(
    database: Database, span: int, points: int, resolution_s: int, bucket_s: int
) -> None:
    readings = chance_readings(1, range(3600), UUIDS[:2])
    history = History(database)
    history.write(readings)
    history.roll_up((T + 3600) * 1000)
    series = ask(history, 0, span, points)
    assert (series.resolution_s, series.bucket_ms) == (resolution_s, 1000 * bucket_s)
    assert len(series.times_ms) <= points
    check_by_hand(series, readings)


def test_what_is_not_rolled_up_yet_is_there_all_the_same(database: Database) -> None:
    readings = chance_readings(2, range(2000), UUIDS[:2])
    history = History(database)
    history.write(readings)
    for rolled_up in (0, 905, 1017, 1900, 5000):  # from nothing to everything
        history.roll_up((T + rolled_up) * 1000)
        check_by_hand(ask(history, 0, 2000, 3), readings)
        check_by_hand(ask(history, 0, 2000, 30), readings)


def test_a_gap_is_a_gap_and_zero_is_zero(database: Database) -> None:
    history = History(database)
    history.write(
        [reading(0, power_w=0.0), reading(1, temperature_c=40.0), reading(4, power_w=2.0)]
    )
    series = ask(history, 0, 6, 6)
    first, other = series.devices
    assert first.readings == (1, 1, 0, 0, 1, 0)
    assert first.metrics["power_w"].mean == (0.0, None, None, None, 2.0, None)
    assert first.metrics["temperature_c"].max == (None, 40.0, None, None, None, None)
    assert first.metrics["utilization_percent"].min == (None,) * 6
    assert other.readings == (0,) * 6 and other.memory_total_bytes == (None,) * 6


def test_the_axis_is_iso_in_utc_on_whole_multiples(database: Database) -> None:
    series = ask(History(database), 3, 58, 6)
    assert series.bucket_ms == 10_000
    begin = datetime.fromtimestamp(T, UTC)
    assert datetime.fromisoformat(series.times[0]) == begin
    assert series.times[0].endswith(".000Z")
    assert series.times_ms == tuple(range(T * 1000, (T + 60) * 1000, 10_000))


def test_a_window_that_moves_on_keeps_its_points(database: Database) -> None:
    history = History(database)
    history.write(chance_readings(3, range(700), UUIDS[:1]))
    before, after = ask(history, 0, 600, 20), ask(history, 7, 607, 20)
    assert before.bucket_ms == after.bucket_ms
    whole = slice(1, len(before.times_ms))
    means = [series.devices[0].metrics["power_w"].mean for series in (before, after)]
    place = after.times_ms.index(before.times_ms[1])
    assert means[0][whole] == means[1][place : place + len(means[0][whole])]


def test_throttle_reasons_of_a_bucket_are_all_that_there_were(database: Database) -> None:
    history = History(database)
    told = [("power cap",), ("idle", "power cap"), None, (), None, None]
    history.write([reading(s, power_w=1.0, throttle_reasons=words) for s, words in enumerate(told)])
    assert ask(history, 0, 6, 3).devices[0].throttle_reasons == (("idle", "power cap"), (), None)


@pytest.mark.parametrize("rolled_up", [False, True])
def test_a_job_has_only_its_own_readings(database: Database, rolled_up: bool) -> None:
    readings = chance_readings(4, range(1000), UUIDS[:2])
    history = History(database)
    history.write(readings)
    if rolled_up:
        history.roll_up((T + 4000) * 1000)
    for job in ("a", "b", "never"):
        own = [one for one in readings if one.job is not None and one.job.id == job]
        check_by_hand(ask(history, 0, 1000, 40, job_id=job), own)


def test_a_reading_keeps_the_kind_of_its_job(database: Database) -> None:
    History(database).write([reading(0, power_w=1.0, job=Job("x", "benchmark"))])
    with database.reading() as connection:
        query = "SELECT job_id, job_type FROM gpu_metrics_jobs"
        assert tuple(connection.exec_driver_sql(query).one()) == ("x", "benchmark")


def test_where_finer_rows_are_deleted_coarser_ones_answer(database: Database) -> None:
    history = History(database)
    readings = chance_readings(5, [*range(100), *range(86_400 * 3, 86_400 * 3 + 100)], UUIDS[:2])
    history.write(readings)
    now_ms = (T + 86_400 * 4) * 1000
    history.roll_up(now_ms)
    assert history.clean_up(now_ms, ServiceSettings()) == 200
    old, new = ask(history, 0, 100, 100), ask(history, 86_400 * 3, 86_400 * 3 + 100, 100)
    assert (old.resolution_s, new.resolution_s) == (10, 1)
    check_by_hand(old, readings)
    check_by_hand(new, readings)


def test_a_slower_beat_has_no_finer_buckets(database: Database) -> None:
    history = History(database, sample_every_s=15)
    history.write([reading(second, power_w=1.0) for second in range(0, 600, 15)])
    series = ask(history, 0, 600, 500)
    assert series.bucket_ms == 15_000
    assert None not in series.devices[0].metrics["power_w"].mean


def test_devices_come_in_the_order_asked_for_each_once(database: Database) -> None:
    history = History(database)
    history.write([reading(0, "GPU-1", power_w=5.0)])
    series = history.range(["GPU-1", "GPU-none", "GPU-0", "GPU-1"], T * 1000, (T + 9) * 1000, 9)
    assert [device.device_uuid for device in series.devices] == ["GPU-1", "GPU-none", "GPU-0"]
    assert series.device("GPU-1").readings[0] == 1
    assert sum(series.device("GPU-none").readings) == 0


@pytest.mark.parametrize(
    ("begin", "end", "points"), [(0, 0, 10), (10, 0, 10), (0, 10, 1), (0, 10, 10_001)]
)
def test_a_range_that_is_none_is_refused(
    database: Database, begin: int, end: int, points: int
) -> None:
    with pytest.raises(RangeError):
        ask(History(database), begin, end, points)


def test_many_devices_as_one_along_the_axis(database: Database) -> None:
    history = History(database)
    history.write(
        [
            reading(0, "GPU-0", utilization_percent=90.0, temperature_c=60.0, power_w=300.0),
            reading(0, "GPU-1", utilization_percent=50.0, temperature_c=70.0),
            reading(1, "GPU-1", utilization_percent=30.0, memory_used_bytes=8 * MIB),
        ]
    )
    lines = aggregate_series(ask(history, 0, 3, 3))
    assert lines["utilization_percent"].value == (70.0, 30.0, None)
    assert lines["utilization_percent"].reporting == (2, 1, 0)
    assert lines["temperature_c"].value == (70.0, None, None)
    assert (lines["power_w"].value, lines["power_w"].reporting) == ((300.0, None, None), (1, 0, 0))
    assert lines["memory_used_bytes"].value == (None, 8 * MIB, None)
