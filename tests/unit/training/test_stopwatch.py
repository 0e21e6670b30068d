"""A rank's own work: which part of a step counts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from single_process import RecordingTask, batch_of, step_of
from torch import Tensor, nn

from drumline.training.stopwatch import DeviceClock, Lap, Stopwatch

DATA = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Clock:
    """Seconds, and seconds on a processor, that are set by hand."""

    def __init__(self) -> None:
        self.seconds, self.processor_s = 10.0, 1.0

    def go_on(self, seconds: float, processor_s: float = 0.0) -> None:
        self.seconds += seconds
        self.processor_s += processor_s


@pytest.fixture
def clock() -> Any:
    clock = Clock()
    told = {"perf_counter": lambda: clock.seconds, "thread_time": lambda: clock.processor_s}
    with patch.multiple(time, **told):
        yield clock


def test_a_lap_is_from_start_to_stop_and_is_told_once(clock: Clock) -> None:
    watch = Stopwatch(torch.device("cpu"))
    assert watch.lap() is None
    watch.start()
    clock.go_on(3.0, 2.0)
    watch.stop()
    clock.go_on(5.0)
    lap = watch.lap()
    assert lap is not None
    assert (lap.seconds, lap.processor_s) == pytest.approx((3.0, 2.0))
    assert watch.lap() is None


def test_a_step_that_was_begun_again_tells_nothing(clock: Clock) -> None:
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    watch.cancel()
    clock.go_on(3.0)
    watch.stop()
    assert watch.lap() is None


def step_on(clock: Clock, folder: Path, fails: int = 0) -> tuple[Any, Any]:
    """A step whose every sample takes 2 s, and 1 s of a processor; its update takes 100 s."""
    left = fails

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        nonlocal left
        if left:
            left -= 1
            raise torch.OutOfMemoryError("no memory")
        clock.go_on(2.0 * len(batch), 1.0 * len(batch))
        return ((model(batch) - batch) ** 2).sum(1)

    torch.manual_seed(5)
    model = nn.Linear(6, 6).double()
    task = RecordingTask(model, DATA, loss)
    task.before_clip = lambda _: clock.go_on(100.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return step_of(task, optimizer, folder, micro_batch=5), model


def test_an_armed_step_times_its_micro_batches_and_nothing_after_them(
    clock: Clock, tmp_path: Path
) -> None:
    step, _ = step_on(clock, tmp_path)
    for index, armed in enumerate([False, True, False]):
        step.stopwatch.armed = armed
        step.take(batch_of(DATA, 12), index)
        assert step.stopwatch.lap() == (Lap(24.0, 12.0) if armed else None)


def test_a_step_that_ran_out_of_memory_is_not_timed(clock: Clock, tmp_path: Path) -> None:
    step, _ = step_on(clock, tmp_path, fails=1)
    step.stopwatch.armed = True
    step.take(batch_of(DATA, 12), 0)
    assert step.micro_batch == 2
    assert step.stopwatch.lap() is None
    step.take(batch_of(DATA, 12), 1)
    assert step.stopwatch.lap() == Lap(24.0, 12.0)


def test_timing_changes_no_bit_of_the_result(clock: Clock, tmp_path: Path) -> None:
    results = []
    for armed in (False, True):
        step, model = step_on(clock, tmp_path)
        step.stopwatch.armed = armed
        for index in range(6):
            step.take(batch_of(DATA, 12), index)
        results.append(model.weight.detach())
    assert torch.equal(*results)


@pytest.mark.gpu
def test_on_a_gpu_a_lap_is_the_streams_own_time() -> None:
    """The work is long, its launch is not: the host's clock would see next to nothing."""
    device = torch.device("cuda")
    watch, clock = Stopwatch(device), DeviceClock(device)
    matrix = torch.randn(4096, 4096, device=device)
    torch.cuda.synchronize()
    before, began = clock.now(), time.perf_counter()
    watch.start()
    for _ in range(20):
        matrix = matrix @ matrix * 1e-3
    watch.stop()
    launched_s, after = time.perf_counter() - began, clock.now()
    torch.cuda.synchronize()
    lap = watch.lap()
    assert lap is not None
    assert launched_s < lap.seconds <= clock.between(before, after)
