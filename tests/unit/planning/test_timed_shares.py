"""Times between and beyond the shares that were timed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning.speed_by_hand import MB, link, workload

from drumline.bench.calibration import company_of, unexplained_s
from drumline.planning.calibrated_speed import CalibratedSpeed
from drumline.planning.cost_model import predict
from drumline.planning.profile import DeviceProfile
from drumline.planning.speed import Control
from drumline.planning.timed_shares import (
    Beside,
    Calibration,
    SharePoint,
    fit_line,
    pipeline_at,
    time_at,
)
from drumline.planning.workload import Exchange, Workload

LINE = [(samples, 0.010 + 0.001 * samples) for samples in (10, 20, 40)]

WHOLE = SharePoint(100, 0.100)
HALF = SharePoint(50, 0.060, remaining_s=(0.020, 0.0))


def test_points_on_a_line_give_the_line_back() -> None:
    intercept, slope = fit_line(LINE)
    assert (intercept, slope) == (pytest.approx(0.010), pytest.approx(0.001))


@pytest.mark.parametrize("samples", [5, 10, 15, 40, 80])
def test_a_line_is_followed_between_and_beyond_its_points(samples: int) -> None:
    assert time_at(LINE, samples) == pytest.approx(0.010 + 0.001 * samples)


def test_timed_shares_count_more_than_the_line_through_them() -> None:
    bent = [(10, 0.020), (20, 0.020), (40, 0.060)]
    assert time_at(bent, 20) == pytest.approx(0.020)
    assert time_at(bent, 30) == pytest.approx(0.040)


def test_a_single_point_scales() -> None:
    assert time_at([(10, 0.5)], 20) == pytest.approx(1.0)


@given(
    times=st.lists(st.floats(1e-6, 10), min_size=1, max_size=6),
    few=st.integers(1, 200),
    more=st.integers(0, 200),
)
def test_a_larger_share_is_never_faster_whatever_the_noise(
    times: list[float], few: int, more: int
) -> None:
    points = [(16 * (place + 1), seconds) for place, seconds in enumerate(times)]
    assert 0 <= time_at(points, few) <= time_at(points, few + more) * (1 + 1e-9)


def calibrated(
    kind: str,
    whole: SharePoint = WHOLE,
    half: SharePoint = HALF,
    beside: dict[int, Beside] | None = None,
    **control: float,
) -> CalibratedSpeed:
    calibration = Calibration(
        device="Abacus",
        kind=kind,
        none=(whole,),
        distributed=(half,),
        exchange=Exchange((30 * MB, 10 * MB), (4,)),
        steps=10,
        beside=beside or {},
    )
    described = DeviceProfile(name="Abacus", all_reduce=[link(2, latency_s=0.0)])
    controls = {2: Control(**control)} if control else {}  # type: ignore[arg-type]
    return CalibratedSpeed(calibration, described, controls)


def two(speed: CalibratedSpeed) -> float:
    """Predicted on two devices. The links take 40 ms for all gradients, 4 ns for the sum."""
    found = predict(speed, "distributed", (50, 50), 50).step_s
    assert found is not None
    return found


def test_each_mode_goes_by_its_own_timed_steps() -> None:
    assert predict(calibrated("cuda"), "none", (100,), 100).step_s == pytest.approx(0.100)
    # 60 ms of DDP with one rank, 20 ms of gradients after the backward, a sum of 4 bytes.
    assert two(calibrated("cuda")) == pytest.approx(0.060 + 0.020 + 4e-9)


def test_on_the_cpu_no_exchange_is_hidden_behind_the_backward() -> None:
    assert two(calibrated("cpu")) == pytest.approx(0.060 + 0.040 + 4e-9)


def test_one_device_takes_what_its_steps_took_whatever_the_parts_said() -> None:
    for data_s, compute_s in [(0.0, 0.1), (0.09, 0.02), (0.05, 0.08), (0.2, 0.3), (0.01, 0.02)]:
        whole = SharePoint(100, 0.100, data_s, compute_s)
        assert predict(calibrated("cuda", whole), "none", (100,), 100).step_s == pytest.approx(0.1)


def test_an_exchange_is_free_while_devices_wait_for_samples() -> None:
    # 100 ms of reading beside 30 ms of computing: 20 ms of gradients more are 50 ms, hidden.
    waiting = SharePoint(50, 0.100, 0.100, 0.030, (0.020, 0.0))
    assert two(calibrated("cuda", half=waiting)) == pytest.approx(0.100)


def test_an_exchange_costs_what_makes_it_longer_than_reading() -> None:
    # 70 ms of reading beside 60 ms of computing; with the exchange that is 80 ms.
    close = SharePoint(50, 0.070, 0.070, 0.060, (0.020, 0.0))
    assert two(calibrated("cuda", half=close)) == pytest.approx(0.080 + 4e-9)


def test_an_exchange_comes_on_top_where_nothing_is_read_ahead() -> None:
    one_by_one = SharePoint(50, 0.090, 0.030, 0.060, (0.020, 0.0))
    assert two(calibrated("cuda", half=one_by_one)) == pytest.approx(0.110 + 4e-9)


def test_what_a_step_takes_beyond_its_parts_stays() -> None:
    slow = SharePoint(50, 0.095, 0.030, 0.060, (0.020, 0.0))
    assert two(calibrated("cuda", half=slow)) == pytest.approx(0.115 + 4e-9)


def test_devices_that_read_at_once_read_slower() -> None:
    # Alone 40 ms of reading are hidden; two at once read 2.5 times as long and set the pace.
    half = SharePoint(50, 0.060, 0.040, 0.060, (0.020, 0.0))
    company = Beside(SharePoint(50, 0.060, 0.040, 0.060), SharePoint(50, 0.100, 0.100, 0.060))
    assert two(calibrated("cuda", half=half, beside={2: company})) == pytest.approx(0.100)


def test_processes_on_shared_cores_compute_slower_and_hide_less() -> None:
    # Computing takes 1.5 times as long; half of the 20 ms of reading is no longer hidden.
    half = SharePoint(50, 0.060, 0.020, 0.060)
    company = Beside(SharePoint(50, 0.050, 0.020, 0.050), SharePoint(50, 0.085, 0.020, 0.075))
    found = two(calibrated("cpu", half=half, beside={2: company}))
    assert found == pytest.approx(0.090 + 0.040 + 4e-9 + 0.010)


def test_company_that_seems_to_help_is_noise() -> None:
    half = SharePoint(50, 0.060, 0.040, 0.060)
    company = Beside(SharePoint(50, 0.060, 0.040, 0.060), SharePoint(50, 0.050, 0.030, 0.050))
    speed = calibrated("cuda", half=half, beside={2: company})
    assert two(speed) == pytest.approx(0.060 + 0.040 + 4e-9)


def test_more_devices_on_the_same_cores_are_slower_in_proportion() -> None:
    pair = Beside(SharePoint(8, 0.1, 0.02, 0.1), SharePoint(8, 0.2, 0.04, 0.2))
    found = company_of({2: pair}, [1, 2, 4], shared_cores=True)
    assert found[2] == pair
    assert found[4] == Beside(pair.alone, SharePoint(8, 0.4, 0.08, 0.4))
    assert company_of({2: pair}, [2, 8], shared_cores=False)[8].beside.step_s == 0.2
    assert company_of({}, [1, 2], shared_cores=True) == {}


def test_a_share_that_was_not_timed_is_put_together_from_its_neighbours() -> None:
    # Reading sets the pace at 10 samples, computing at 30.
    points = [SharePoint(10, 0.020, 0.020, 0.010), SharePoint(30, 0.060, 0.040, 0.060)]
    between = pipeline_at(points, 21)
    assert between.data_s == pytest.approx(0.031)
    assert between.compute_s == pytest.approx(0.0375)
    assert between.step_s() == pytest.approx(0.0375)


@given(
    step=st.floats(1e-4, 1), data=st.floats(0, 1), compute=st.floats(1e-4, 1), more=st.floats(0, 1)
)
def test_more_to_do_never_makes_a_step_shorter_nor_costs_more_than_itself(
    step: float, data: float, compute: float, more: float
) -> None:
    pipeline = SharePoint(1, step, data, compute).pipeline()
    assert pipeline.step_s() == pytest.approx(step)
    assert step * (1 - 1e-9) <= pipeline.step_s(more) <= (step + more) * (1 + 1e-9)


def test_a_vote_costs_what_is_longer_than_the_step_and_metrics_are_spread_over_steps() -> None:
    step = 0.080 + 4e-9
    patient = calibrated("cuda", vote_s=0.050, gather_s=0.002, every_steps=10)
    assert predict(patient, "distributed", (50, 50), 50).step_s == pytest.approx(step + 0.0002)
    slow = calibrated("cuda", vote_s=0.100, gather_s=0.0, every_steps=10)
    assert predict(slow, "distributed", (50, 50), 50).step_s == pytest.approx(0.100)


def timed_together(speed: CalibratedSpeed, count: int, step_s: float) -> CalibratedSpeed:
    """With whole steps of 50 samples a device on `count` devices."""
    whole = {**speed.calibration.whole, count: SharePoint(50 * count, step_s)}
    timed = replace(speed, calibration=replace(speed.calibration, whole=whole))
    plain = replace(timed, unexplained_s={})
    found = {**speed.unexplained_s, count: unexplained_s(plain, count, 50)}
    return replace(timed, unexplained_s=found)


@pytest.mark.parametrize("step_s", [0.100, 0.075])
def test_whole_steps_on_several_devices_are_what_they_took(step_s: float) -> None:
    control = {"vote_s": 0.090, "gather_s": 0.002, "every_steps": 10}
    speed = timed_together(calibrated("cuda", **control), 2, step_s)
    # No metrics were gathered in those steps, so their part of a step comes on top.
    assert two(speed) == pytest.approx(step_s + 0.0002)
    assert predict(speed, "none", (100,), 100).step_s == pytest.approx(0.100)


def test_what_is_not_explained_grows_with_peers_up_to_those_that_were_there() -> None:
    plain = calibrated("cuda")

    def added(speed: CalibratedSpeed, count: int) -> float:
        shares = (50,) * count
        found, without = (predict(s, "distributed", shares, 50).step_s for s in (speed, plain))
        assert found is not None and without is not None
        return found - without

    on_four = predict(plain, "distributed", (50,) * 4, 50).step_s
    assert on_four is not None
    speed = timed_together(plain, 4, on_four + 0.030)
    assert [added(speed, count) for count in (2, 3, 4, 8)] == pytest.approx(
        [0.01, 0.02, 0.03, 0.03]
    )
    on_two = predict(plain, "distributed", (50,) * 2, 50).step_s
    assert on_two is not None
    speed = timed_together(speed, 2, on_two - 0.004)  # where they were timed, they are taken
    assert [added(speed, count) for count in (2, 3, 4, 8)] == pytest.approx(
        [-0.004, 0.013, 0.03, 0.03]
    )
    (part,) = speed.together(3)
    assert part.line.endswith("1/2 of the way from 2")


def test_workload_and_calibration_come_back_from_json() -> None:
    assert Workload.from_dict(json.loads(json.dumps(workload().as_dict()))) == workload()
    pair = Beside(SharePoint(50, 0.1), SharePoint(50, 0.2, 0.1, 0.2))
    timed = replace(calibrated("cpu", beside={2: pair}).calibration, whole={2: pair.beside})
    assert Calibration.from_dict(json.loads(json.dumps(asdict(timed)))) == timed
