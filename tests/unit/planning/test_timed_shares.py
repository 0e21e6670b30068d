"""Times between and beyond the shares that were timed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning.speed_by_hand import MB, link, workload

from drumline.planning.cost_model import predict
from drumline.planning.profile import DeviceProfile
from drumline.planning.speed import CalibratedSpeed, Control
from drumline.planning.workload import (
    Calibration,
    Exchange,
    SharePoint,
    Workload,
    fit_line,
    time_at,
)

LINE = [SharePoint(samples, 0.010 + 0.001 * samples) for samples in (10, 20, 40)]


def test_points_on_a_line_give_the_line_back() -> None:
    intercept, slope = fit_line(LINE)
    assert (intercept, slope) == (pytest.approx(0.010), pytest.approx(0.001))


@pytest.mark.parametrize("samples", [5, 10, 15, 40, 80])
def test_a_line_is_followed_between_and_beyond_its_points(samples: int) -> None:
    assert time_at(LINE, samples) == pytest.approx(0.010 + 0.001 * samples)


def test_timed_shares_count_more_than_the_line_through_them() -> None:
    bent = [SharePoint(10, 0.020), SharePoint(20, 0.020), SharePoint(40, 0.060)]
    assert time_at(bent, 20) == pytest.approx(0.020)
    assert time_at(bent, 30) == pytest.approx(0.040)


def test_a_single_point_scales() -> None:
    assert time_at([SharePoint(10, 0.5)], 20) == pytest.approx(1.0)


@given(
    times=st.lists(st.floats(1e-6, 10), min_size=1, max_size=6),
    few=st.integers(1, 200),
    more=st.integers(0, 200),
)
def test_a_larger_share_is_never_faster_whatever_the_noise(
    times: list[float], few: int, more: int
) -> None:
    points = [SharePoint(16 * (place + 1), seconds) for place, seconds in enumerate(times)]
    assert 0 <= time_at(points, few) <= time_at(points, few + more) * (1 + 1e-9)


def calibrated(kind: str, **changes: float) -> CalibratedSpeed:
    calibration = Calibration(
        device="Abacus",
        kind=kind,
        none=(SharePoint(100, 0.100),),
        distributed=(SharePoint(50, 0.060, 0.0, (0.020, 0.0)),),
        exchange=Exchange((30 * MB, 10 * MB), (4,)),
        steps=10,
        slowdown={2: 1.5} if kind == "cpu" else {},
    )
    described = DeviceProfile(name="Abacus", all_reduce=[link(2, latency_s=0.0)])
    return CalibratedSpeed(calibration, described, {2: Control(**changes)} if changes else {})


def test_each_mode_goes_by_its_own_timed_steps() -> None:
    assert predict(calibrated("cuda"), "none", (100,), 100).step_s == pytest.approx(0.100)
    # 60 ms of DDP with one rank, 20 ms of gradients after the backward, a sum of 4 bytes.
    two = predict(calibrated("cuda"), "distributed", (50, 50), 50)
    assert two.step_s == pytest.approx(0.060 + 0.020 + 4e-9)


def test_processes_on_the_cpu_slow_each_other_down_and_hide_nothing() -> None:
    two = predict(calibrated("cpu"), "distributed", (50, 50), 50)
    assert two.step_s == pytest.approx(1.5 * 0.060 + 0.040 + 4e-9)


def test_a_vote_costs_what_is_longer_than_the_step_and_metrics_are_spread_over_steps() -> None:
    step = 0.080 + 4e-9
    patient = calibrated("cuda", vote_s=0.050, gather_s=0.002, every_steps=10)
    assert predict(patient, "distributed", (50, 50), 50).step_s == pytest.approx(step + 0.0002)
    slow = calibrated("cuda", vote_s=0.100, gather_s=0.0, every_steps=10)
    assert predict(slow, "distributed", (50, 50), 50).step_s == pytest.approx(0.100)


def test_workload_and_calibration_come_back_from_json() -> None:
    import json
    from dataclasses import asdict

    assert Workload.from_dict(json.loads(json.dumps(workload().as_dict()))) == workload()
    timed = calibrated("cpu").calibration
    assert Calibration.from_dict(json.loads(json.dumps(asdict(timed)))) == timed
