"""Rates by arithmetic: the clock is replaced, so that what is checked are counts and units."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from drumline.bench import measure

CPU = torch.device("cpu")


@pytest.fixture
def half_a_second(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every piece of work is done once and takes half a second."""
    precisions: list[str] = []

    def timed(work: Callable[[], object], device: torch.device, **settings: object) -> float:
        precisions.append(torch.get_float32_matmul_precision())
        work()
        return 0.5

    monkeypatch.setattr(measure, "median_seconds", timed)
    return precisions


def test_a_matmul_counts_two_operations_for_each_product(half_a_second: list[str]) -> None:
    rate = measure.matmul_tflops(CPU, "bf16", 64)
    assert rate == pytest.approx(2 * 64**3 / 0.5 / 1e12)


def test_tf32_is_on_only_while_it_is_measured(half_a_second: list[str]) -> None:
    before = torch.get_float32_matmul_precision()
    measure.matmul_tflops(CPU, "tf32", 8)
    measure.matmul_tflops(CPU, "fp32", 8)
    assert half_a_second == ["high", "highest"]
    assert torch.get_float32_matmul_precision() == before


def test_a_copy_counts_bytes_read_and_written(half_a_second: list[str]) -> None:
    assert measure.copy_bandwidth(CPU, 10**6) == pytest.approx(2 * 10**6 / 0.5 / 1e9)


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_what_a_ring_sends_over_each_link(ranks: int, factor: float) -> None:
    timing = measure.AllReduceTiming(ranks, 10**9, 0.5)
    assert timing.bus_gb_s == pytest.approx(factor * 2)


def test_the_median_is_of_the_repeats_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    clock = iter([0.0, 0.0, 10.0, 11.0, 20.0, 23.0, 30.0, 32.0])  # two readings for the warm-up
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    seconds = measure.median_seconds(lambda: calls.append(1), CPU, repeats=3)
    assert seconds == statistics.median([1.0, 3.0, 2.0])
    assert len(calls) == 5
