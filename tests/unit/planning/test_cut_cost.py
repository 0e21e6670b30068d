"""Predicted step times of modes that cut parameters, against arithmetic on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planning.speed_by_hand import MB, figure, link, profile, speed, workload

from drumline.config import Mode, RunConfig
from drumline.errors import BadInput
from drumline.planning.cost_model import Candidate
from drumline.planning.cut_cost import Cutting, backward_s, cutting_of, forward_s, predict_cut
from drumline.planning.estimate import estimate
from drumline.planning.plan import compare, predict_mode
from drumline.planning.prices import PriceList
from drumline.planning.profiled_speed import ProfiledSpeed
from drumline.planning.workload import Exchange

PLAIN = profile(all_reduce=[link(n, latency_s=0.0) for n in (2, 4, 8)])
UNITS = Exchange((40 * MB,), (4,), unit_bytes=(20 * MB, 12 * MB, 8 * MB))
"""Two units, and 8 MB that belong to the whole model. On two ranks a link of 1 GB/s takes half a
millisecond for each MB: 10, 6 and 4 ms."""


def config(**keys: Any) -> RunConfig:
    return RunConfig.model_validate({"steps": 10, "global_batch": 100, **keys})


def slow(**changes: Any) -> ProfiledSpeed:
    fields = {"flop_per_sample": 0.0, "traffic_per_step": 0.0, "exchange": UNITS, **changes}
    return speed(workload=workload(**fields), profile=PLAIN)


IDLE: dict[str, Any] = {
    "traffic_per_sample": 0.0,
    "traffic_per_pass": 0.0,
    "kernels_per_pass": 0,
    "kernels_per_step": 0,
    "sample_bytes": 0.0,
}
"""Of a workload that computes nothing."""


def sent(found: Candidate) -> float:
    return next(part.seconds for part in found.parts if part.name == "weights and gradients")


def test_a_forward_waits_for_the_first_weights_and_for_what_comes_too_late() -> None:
    # Whole model 1 s, units 2 and 3 s; they compute 5, 1 and 1 s. Needed first: the whole model's.
    gathers, compute = [2.0, 3.0, 1.0], [1.0, 1.0, 5.0]
    # 1: the root computes to 6, unit 0 is there at 3, computes to 7; unit 1 came from 6 (only one
    # unit ahead) to 9, and computes to 10.
    assert forward_s(gathers, compute) == pytest.approx(10.0)
    assert forward_s(gathers, [0.0, 0.0, 0.0]) == pytest.approx(6.0)  # all that is on the wire
    assert forward_s([0.0] * 3, compute) == pytest.approx(7.0)  # all that is computed


def test_a_backward_fetches_ahead_and_sends_behind() -> None:
    gathers, compute, scatters = [2.0, 3.0, 0.0], [4.0, 4.0, 1.0], [1.0, 1.0, 1.0]
    # Unit 1 is there at 3 and computes to 7, as unit 0 comes from 3 to 5. Its gradients go from 7
    # to 8; unit 0 computes to 11, sends to 12; the rest computes to 12, sends to 13.
    assert backward_s(gathers, compute, scatters) == pytest.approx(13.0)
    assert backward_s(gathers, [0.0] * 3, scatters) == pytest.approx(8.0)
    assert backward_s(gathers, compute, [0.0] * 3) == pytest.approx(12.0)


def test_without_computing_all_is_waited_for() -> None:
    # A gather and a cut move half of the bytes each on two ranks: forward 20 ms, backward the two
    # units' 16 ms, gradients 20 ms.
    found = predict_cut(slow(**IDLE), Mode.SHARDED, (50, 50), 50, Cutting(2))
    assert sent(found) == pytest.approx(0.056)


@pytest.mark.parametrize(
    ("cutting", "expected"),
    [
        (Cutting(2, reshards=False), 0.040),  # weights stay for the backward
        (Cutting(2, gathered=0.5), 0.010 + 0.008 + 0.020),
        (Cutting(2, reduced=0.5), 0.020 + 0.016 + 0.010),
        (Cutting(1, 2, reshards=False), 0.040),  # replicas: an all-reduce of 40 MB
        (Cutting(2, 2), 0.056 + 0.020),  # and an all-reduce of 20 MB of pieces
    ],
)
def test_what_is_sent_depends_on_how_it_is_cut(cutting: Cutting, expected: float) -> None:
    idle = slow(**IDLE)
    shares = (25,) * (cutting.shards * cutting.replicas)
    found = predict_cut(idle, Mode.HYBRID, shares, 25, cutting)
    assert sent(found) == pytest.approx(expected)


def test_every_micro_batch_gathers_and_the_last_one_sends() -> None:
    idle = slow(**IDLE)
    found = predict_cut(idle, Mode.SHARDED, (50, 50), 25, Cutting(2))
    assert sent(found) == pytest.approx(2 * 0.036 + 0.020)


def test_long_computing_hides_all_but_the_first_weights_and_the_last_gradients() -> None:
    # 50 samples of 100 GFLOP take 5 s; the root's 4 ms come first, then the units' are ahead. In
    # the backward unit 1's 6 ms come first, and the rest's 4 ms of gradients go last.
    busy = slow(flop_per_sample=1e11)
    found = predict_cut(busy, Mode.SHARDED, (50, 50), 50, Cutting(2))
    assert sent(found) == pytest.approx(0.004 + 0.006 + 0.004)


def test_on_the_cpu_nothing_is_hidden() -> None:
    busy = slow(flop_per_sample=1e11)
    on_cpu = replace(busy, profile=profile(kind="cpu", all_reduce=PLAIN.all_reduce))
    found = predict_cut(on_cpu, Mode.SHARDED, (50, 50), 50, Cutting(2))
    assert sent(found) == pytest.approx(0.056)


def test_a_rank_updates_its_own_part() -> None:
    # 200 MB of the optimizer's traffic: 50 MB a rank on four, at 1 TB/s.
    update = speed(workload=workload(flop_per_sample=0.0, traffic_per_sample=0.0,
                                     traffic_per_pass=0.0, kernels_per_pass=0),
                   profile=profile(launch_s=figure(0.0)))  # fmt: skip
    found = predict_cut(update, Mode.SHARDED, (25,) * 4, 25, Cutting(4))
    memory = next(part for part in found.parts if part.name == "memory")
    assert memory.seconds == pytest.approx(50e-6)


@pytest.mark.parametrize(
    ("keys", "mode", "expected"),
    [
        ({}, Mode.SHARDED, Cutting(4)),
        ({"distributed": {"sharded": {"reshard_after_forward": False}}}, Mode.SHARDED,
         Cutting(4, reshards=False)),
        ({"distributed": {"sharded": {"gather_dtype": "precision"}}, "precision": "bf16"},
         Mode.SHARDED, Cutting(4, gathered=0.5)),
        ({"distributed": {"sharded": {"reduce_dtype": "bf16"}}}, Mode.SHARDED,
         Cutting(4, reduced=0.5)),
        ({"distributed": {"mode": "hybrid", "mesh": {"shard": 2}}}, Mode.HYBRID, Cutting(2, 2)),
        ({"distributed": {"mode": "hybrid", "mesh": {"data": 4}}}, Mode.HYBRID,
         Cutting(1, 4, reshards=False)),
        ({"distributed": {"mode": "hybrid", "mesh": {"tensor": 2}}}, Mode.HYBRID, None),
        ({"distributed": {"mode": "hybrid", "mesh": {"pipeline": 2}}}, Mode.HYBRID, None),
    ],
)  # fmt: skip
def test_the_config_says_how_it_is_cut(
    keys: dict[str, Any], mode: Mode, expected: Cutting | None
) -> None:
    assert cutting_of(config(**keys), mode, 4) == expected


def test_candidates_name_what_auto_does_not_take() -> None:
    found = {each.mode: each for each in compare(config(), 4, speed())}
    assert found["sharded"].step_s is not None
    assert not found["sharded"].selectable
    assert found["hybrid"].step_s is None
    mesh = config(distributed={"mode": "hybrid", "mesh": {"shard": 2}})
    named = {each.mode: each for each in compare(mesh, 4, speed())}
    assert named["hybrid"].step_s == predict_mode(mesh, Mode.HYBRID, 4, speed()).step_s
    split = config(distributed={"mode": "hybrid", "mesh": {"tensor": 2}})
    assert {each.mode: each.step_s for each in compare(split, 2, speed())}["hybrid"] is None


def test_an_estimate_is_of_the_mode_that_is_named() -> None:
    cut = config(distributed={"mode": "sharded"})
    found = estimate(cut, [1, 4], speed(), PriceList())
    assert [row.mode for row in found.rows] == ["none", "sharded"]
    assert found.rows[1].step_s == predict_mode(cut, Mode.SHARDED, 4, speed()).step_s
    with pytest.raises(BadInput, match="tensor or pipeline"):
        split = {"mode": "hybrid", "mesh": {"tensor": 2}}
        estimate(config(distributed=split), [4], speed(), PriceList())
