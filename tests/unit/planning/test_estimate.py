"""Throughput, speedup, time and cost of a run, against arithmetic on paper."""

from __future__ import annotations

import json
from typing import Any

import pytest
from planning.speed_by_hand import profile, speed, workload

from drumline.config import RunConfig, parse_config
from drumline.errors import BadInput
from drumline.planning.estimate import estimate
from drumline.planning.prices import Price, PriceList

PRICES = PriceList(
    currency="EUR",
    prices=[
        Price(devices=["Abacus"], per_hour=3.6, vendor="us", source="a page", date="2026-01-31")
    ],
)


def config(**keys: Any) -> RunConfig:
    return parse_config({"steps": 1000, "global_batch": 100, **keys})


def test_time_throughput_and_cost() -> None:
    found = estimate(config(), [1, 2], speed(), PRICES)
    one, two = found.rows
    step = 0.100 + 1e-4  # 100 GFLOP at 1 TFLOP/s, and 1 MB at 10 GB/s
    assert one.step_s == pytest.approx(step)
    assert one.samples_per_s == pytest.approx(100 / step)
    assert one.finish_s == pytest.approx(1000 * step)
    assert one.cost == pytest.approx(1000 * step / 3600 * 3.6)
    assert (one.mode, two.mode) == ("none", "distributed")
    assert two.speedup == pytest.approx(step / two.step_s)
    assert two.efficiency == pytest.approx(two.speedup / 2)
    assert two.device_hours == pytest.approx(2 * 1000 * two.step_s / 3600)
    assert two.cost == pytest.approx(two.device_hours * 3.6)
    assert "read 2026-01-31" in found.price_note


def test_speedup_is_against_one_device_even_if_one_was_not_asked_for() -> None:
    (four,) = estimate(config(), [4], speed(), PRICES).rows
    assert four.speedup == pytest.approx(0.1001 / four.step_s)


def test_a_missing_price_is_said_to_be_missing() -> None:
    found = estimate(config(), [1], speed(), PriceList())
    assert found.rows[0].cost is None
    assert found.price_note == "the price of Abacus is missing from the price list: no cost"


def test_what_is_not_known_is_said_once() -> None:
    found = estimate(config(), [1, 2, 4], speed(profile=profile(launch_s=None)), PRICES)
    assert found.notes == ("not known, and counted as nothing: the time to launch a kernel",)


def test_what_no_trace_sees_is_said_beside_what_the_profile_lacks() -> None:
    found = estimate(
        config(), [1], speed(profile=profile(launch_s=None), untraced=("acting",)), PRICES
    )
    assert found.notes == (
        "not known, and counted as nothing: the time to launch a kernel, acting",
    )


def test_shares_of_the_config_hold_for_their_number_of_devices_only() -> None:
    found = estimate(
        config(distributed={"shares": [75, 25]}), [2, 4], speed(workload=workload()), PRICES
    )
    assert [row.shares for row in found.rows] == [(75, 25), (25, 25, 25, 25)]


def test_more_devices_than_samples_is_the_error_of_a_plan() -> None:
    with pytest.raises(
        BadInput, match="global_batch 100 cannot be shared by 128 devices"
    ) as caught:
        estimate(config(), [1, 128], speed(), PRICES)
    assert caught.value.remedy == "Use at most 100 devices, or global_batch=128 or more."


@pytest.mark.parametrize("counts", [[], [0, 1]])
def test_no_number_of_devices_is_refused(counts: list[int]) -> None:
    with pytest.raises(BadInput, match="at least one number"):
        estimate(config(), counts, speed(), PRICES)


def test_the_schema_for_programs() -> None:
    read = json.loads(json.dumps(estimate(config(), [1], speed(), PRICES).as_dict()))
    assert read.keys() == {
        "version",
        "device",
        "source",
        "global_batch",
        "steps",
        "currency",
        "price_note",
        "rows",
        "notes",
    }
    assert read["version"] == 1
    assert read["rows"][0].keys() == {
        "devices",
        "mode",
        "shares",
        "step_s",
        "samples_per_s",
        "speedup",
        "efficiency",
        "finish_s",
        "device_hours",
        "cost",
        "lines",
    }
