"""Times of one session's steps in a steady state: reading, computing, and both as the Trainer does.

All three go over the same batches, which are read once before, so that files are in the system's
memory as in a long run. The first steps are left out: they are careful (see `StandardStep`), choose
kernels and fill caches. On several ranks all take equally many steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

from drumline.planning.timed_shares import SharePoint
from drumline.training.session import Session
from drumline.training.source import Cursor, StepBatch
from drumline.training.stopwatch import DeviceClock

WARM_UP_STEPS = 5
LEAST_STEPS = 6
MOST_STEPS = 200
BLOCKS = 5
"""Parts of a series whose means are compared: long, as what a run takes is a mean over many steps,
of which some wait for reading and some do not; several, so that a rare hiccup does not count.
"""
_REPEATS = 3


def time_session(session: Session, budget_s: float) -> SharePoint:
    """Time the steps of a session, its watchers included.

    Args:
        session: With its share of the global batch.
        budget_s: Seconds for the whole steps; half of it each for reading and for computing.
    """
    start = session.progress.cursor
    _read(session, start, MOST_STEPS, budget_s / 2)
    read = _read(session, start, MOST_STEPS, budget_s / 2)
    held = next(session.source.open(session.share, start))
    warm = _take_steps(session, repeat(held), WARM_UP_STEPS)
    steps = _agreed(session, budget_s / max(1e-9, min(warm)))
    computed = _take_steps(session, repeat(held), max(LEAST_STEPS, steps // 2))
    batches = session.source.open(session.share, start)
    _take_steps(session, batches, WARM_UP_STEPS)
    whole = _take_steps(session, batches, steps)
    return SharePoint(
        session.config.global_batch,
        steady(whole),
        steady(read[WARM_UP_STEPS:]),
        steady(computed),
        _remaining(session, held),
    )


def steady(times: Sequence[float]) -> float:
    """Median over `BLOCKS` parts of a series of their mean."""
    block = max(1, len(times) // BLOCKS)
    blocks = [times[at : at + block] for at in range(0, len(times) - block + 1, block)]
    return statistics.median(statistics.fmean(some) for some in blocks)


def _read(session: Session, start: Cursor, most: int, budget_s: float) -> list[float]:
    """Seconds for each batch while nothing is computed."""
    batches = session.source.open(session.share, start)
    times: list[float] = []
    least = WARM_UP_STEPS + LEAST_STEPS
    while len(times) < least or (len(times) < most and sum(times) < budget_s):
        began = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - began)
    return times


def _agreed(session: Session, wanted: float) -> int:
    """A number of steps, the same on all ranks."""
    return session.world.control.broadcast(int(min(MOST_STEPS, max(LEAST_STEPS, wanted))))


def _take_steps(session: Session, batches: Iterator[StepBatch], count: int) -> list[float]:
    """Seconds of each step of the Trainer's loop."""
    times = []
    session.world.synchronize()
    for _ in range(count):
        began = time.perf_counter()
        ballot = session.world.control.call(stop=0)
        _take(session, next(batches))
        ballot.result()
        times.append(time.perf_counter() - began)
    session.world.synchronize()
    return times


def _take(session: Session, batch: StepBatch) -> None:
    session.schedule(batch)
    outcome = session.step.take(batch, session.progress.step)
    session.progress.step += 1
    session.progress.samples += batch.global_count
    for watcher in session.watchers:
        watcher.after_step(session, batch, outcome)


def _remaining(session: Session, batch: StepBatch) -> tuple[float, ...]:
    """For each trained parameter, in the model's order, how long the last backward of a step still
    ran once its gradient was there: the median of some steps, in seconds. 0 where a step forms
    gradients without autograd.
    """
    found = [_remaining_once(session, batch) for _ in range(_REPEATS)]
    return tuple(
        statistics.median(times.get(name, 0.0) for times in found)
        for name, parameter in session.model.named_parameters()
        if parameter.requires_grad
    )


def _remaining_once(session: Session, batch: StepBatch) -> dict[str, float]:
    clock = DeviceClock(session.world.device)
    began, marks = clock.now(), dict[str, Any]()

    def mark(name: str) -> Callable[[Any], None]:
        return lambda _: marks.update({name: clock.now()})

    hooks = [
        parameter.register_post_accumulate_grad_hook(mark(name))  # type: ignore[no-untyped-call]
        for name, parameter in session.model.named_parameters()
        if parameter.requires_grad
    ]
    _take(session, batch)
    session.world.synchronize()
    for hook in hooks:
        hook.remove()
    seconds = {name: clock.between(began, moment) for name, moment in marks.items()}
    last = max(seconds.values(), default=0.0)
    return {name: last - at for name, at in seconds.items()}
