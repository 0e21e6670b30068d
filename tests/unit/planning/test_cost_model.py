"""Predicted step times against arithmetic on paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning.speed_by_hand import MB, figure, link, profile, speed, workload

from drumline.planning.cost_model import (
    Candidate,
    all_reduce_s,
    choose,
    exposed_s,
    predict,
)
from drumline.planning.shares import cut_shares
from drumline.planning.workload import Exchange


def seconds(candidate: Candidate, name: str) -> float:
    return next(part.seconds for part in candidate.parts if part.name == name)


def test_one_device_takes_the_slowest_of_its_limits_and_the_copy() -> None:
    # 100 x 1 GFLOP / 1 TFLOP/s = 100 ms; memory 1.24 ms; 60 kernels x 10 us = 0.6 ms.
    one = predict(speed(), "none", (100,), 100)
    assert one.step_s == pytest.approx(0.100 + 100 * 10_000 / 1e10)
    assert [part.name for part in one.parts if part.seconds] == ["matmul", "copy"]


def test_micro_batches_repeat_what_is_paid_by_micro_batch() -> None:
    # 4 micro-batches of 25: 1000 MB + 4 x 40 MB + 200 MB over 1 TB/s; nothing else takes time.
    memory = speed(workload=workload(flop_per_sample=0.0), profile=profile(launch_s=figure(0.0)))
    assert seconds(predict(memory, "none", (100,), 25), "memory") == pytest.approx(1.36e-3)
    # 4 x 50 + 10 kernels of 1 ms each are slower than that.
    launches = speed(workload=workload(flop_per_sample=0.0), profile=profile(launch_s=figure(1e-3)))
    assert seconds(predict(launches, "none", (100,), 25), "launches") == pytest.approx(0.210)


def test_all_reduce_is_latency_and_bandwidth() -> None:
    # 2 (4 - 1) / 4 x 40 MB / 1 GB/s + 2 x 10 us
    assert all_reduce_s(link(4), 4, [30 * MB, 10 * MB]) == pytest.approx(0.060 + 2e-5)


def test_only_what_comes_after_the_backward_costs_time() -> None:
    exchange = Exchange((30 * MB, 10 * MB))  # two buckets: both reach their bound
    plain = link(2, latency_s=0.0)
    # 2 (2 - 1) / 2 = 1: 30 ms then 10 ms on the wire. Sent from 20 ms before the end on, the first
    # is done 10 ms after it, and the second waits for the wire.
    assert exposed_s(exchange, plain, 2, (0.020, 0.0)) == pytest.approx(0.020)
    # Long before the end: the first hides whole, and the last bucket costs its 10 ms.
    assert exposed_s(exchange, plain, 2, (1.0, 0.0)) == pytest.approx(0.010)
    # Nothing known of the backward: all of it.
    assert exposed_s(exchange, plain, 2, ()) == pytest.approx(0.040)


def test_small_gradients_share_a_bucket_and_wait_for_its_last() -> None:
    exchange = Exchange((2 * MB, 6 * MB, 6 * MB), bucket_bytes=10 * MB)
    assert exchange.buckets() == [[0], [1, 2]]
    plain = link(2, latency_s=0.0)
    assert exposed_s(exchange, plain, 2, (1.0, 0.5, 0.0)) == pytest.approx(0.012)


def test_a_step_on_two_devices_adds_gradients_and_sums() -> None:
    # Gradients come evenly by bytes over the last pass's backward of 2/3 x 50 ms: the first, three
    # quarters of the bytes, a quarter of it before the end = 8.33 ms. 30 ms and 10 ms, each with
    # 10 us, go on the wire from there: 40.02 - 8.33 ms are left.
    two = predict(speed(), "distributed", (50, 50), 50)
    gradients = 0.04002 - (2 / 3) * 0.050 / 4
    assert seconds(two, "gradients") == pytest.approx(gradients)
    assert seconds(two, "sums") == pytest.approx(1e-5 + 4 / 1e9)
    assert two.step_s == pytest.approx(0.050 + 50 * 1e-6 + gradients + 1e-5 + 4e-9)


def test_on_the_cpu_nothing_is_hidden() -> None:
    on_cpu = speed(profile=profile(kind="cpu"))
    assert seconds(predict(on_cpu, "distributed", (50, 50), 50), "gradients") == pytest.approx(
        0.04002
    )


def test_the_largest_share_sets_the_pace() -> None:
    unequal = predict(speed(), "distributed", (90, 10), 90)
    assert seconds(unequal, "matmul") == pytest.approx(0.090)


def test_dataparallel_sends_all_over_one_link_and_is_never_chosen() -> None:
    offered = predict(speed(), "dataparallel", (25,) * 4, 25)
    assert seconds(offered, "weights and gradients") == pytest.approx(2 * 3 * 0.040)
    assert not offered.selectable
    winner, _ = choose([predict(speed(), "none", (100,), 100), offered])
    assert winner.mode == "none"


def test_what_cannot_be_chosen_never_is() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        choose([Candidate("sharded", 4, (1,) * 4, 1.0, selectable=False), Candidate("hybrid", 4)])


@pytest.mark.parametrize(("other", "winner"), [(0.94, 2), (0.96, 1), (1.5, 1)])
def test_more_devices_must_save_more_than_the_model_errs(other: float, winner: int) -> None:
    best, why = choose(
        [Candidate("none", 1, (8,), 1.0), Candidate("distributed", 2, (4, 4), other)]
    )
    assert best.devices == winner
    assert f"mode {best.mode} on {winner}" in why


def test_the_arithmetic_is_shown() -> None:
    lines = [part.line for part in predict(speed(), "none", (4096,), 4096).parts]
    assert "4,096 samples × 1 GFLOP = 4.1 TFLOP; / 1 TFLOP/s [measured] = 4.1 s" in lines


@given(
    global_batch=st.integers(64, 4096),
    devices=st.integers(1, 32),
    gradients=st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
)
def test_more_devices_never_raise_the_work_or_pass_the_bound_on_bytes(
    global_batch: int, devices: int, gradients: list[int]
) -> None:
    costs = speed(workload=workload(exchange=Exchange(tuple(gradients))))

    def of(count: int) -> Candidate:
        shares = cut_shares(global_batch, (1,) * count)
        return predict(costs, "distributed", shares, max(shares))

    fewer, more = of(devices), of(devices + 1)
    work = [sum(part.seconds for part in candidate.parts[:4]) for candidate in (fewer, more)]
    assert work[1] <= work[0] * (1 + 1e-9)
    size = devices + 1
    sent = all_reduce_s(link(size, latency_s=0.0), size, gradients)  # bytes, as a GB takes 1 s
    assert sent * 1e9 == pytest.approx(2 * devices / size * sum(gradients))
    assert sent * 1e9 < 2 * sum(gradients)


@given(
    gradients=st.lists(st.integers(1, 10**8), max_size=12),
    remaining=st.lists(st.floats(0, 1), max_size=12),
    size=st.integers(2, 16),
)
def test_what_is_exposed_is_between_the_last_bucket_and_the_whole(
    gradients: list[int], remaining: list[float], size: int
) -> None:
    exchange, plain = Exchange(tuple(gradients)), link(size)
    exposed = exposed_s(exchange, plain, size, remaining)
    whole = all_reduce_s(plain, size, gradients)
    buckets = exchange.buckets()
    assert sorted(place for bucket in buckets for place in bucket) == list(range(len(gradients)))
    assert 0 <= exposed <= whole * (1 + 1e-9) + 1e-12
    if buckets and len(remaining) < len(gradients):  # the last gradient comes at the very end
        last = all_reduce_s(plain, size, [gradients[place] for place in buckets[-1]])
        assert exposed >= last * (1 - 1e-9)
