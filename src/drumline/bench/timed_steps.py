"""What a rank does in a calibration: real steps of a config, timed with one share after the other,
and the exchanges that more ranks would add. Results go to a JSON file beside the run's events.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from drumline.config import ClusterEnvironment, DistributedConfig, Mode, RunConfig, parse_config
from drumline.config.section import import_object
from drumline.distributed import World, open_world
from drumline.distributed.control import LocalControl
from drumline.planning.workload import Exchange, SharePoint
from drumline.run_directory import RunDirectory
from drumline.training.batches import narrow, to_device
from drumline.training.precision import Arithmetic
from drumline.training.session import Session, open_session
from drumline.training.source import StepBatch

RESULT = "calibration.json"
WARM_UP_STEPS = 5
"""The first steps are careful (see `StandardStep`), choose kernels, and fill caches. Where they are
long, `LEAST_STEPS` have to do.
"""
LEAST_STEPS = 3
MOST_STEPS = 200
TRIMMED = 0.1
"""Part of the steps left out at either end of the sorted times."""
_REPEATS = 7


@dataclass(frozen=True)
class Series:
    """What to time: a mode with a share, as a rank among `devices` would have it."""

    mode: str
    share: int
    devices: int


def time_alone(payload: dict[str, Any]) -> None:
    """Kind "call" on one rank: time every series, and learn what ranks would exchange."""
    config, environment = parse_config(payload["config"]), ClusterEnvironment.detect()
    assert environment.run_dir is not None
    found: dict[str, Any] = {"none": [], "distributed": []}
    with open_world(config, environment) as world:
        threads = torch.get_num_threads()
        order: list[str] = []
        for given in payload["series"]:
            series = Series(**given)
            _share_cores(world, threads, series.devices)
            session = _open(config, world, series, environment.run_dir)
            point = _time(session, payload["budget_s"])
            remaining = _remaining(session)
            order = order or sorted(remaining, key=lambda name: -remaining[name])
            point = replace(point, remaining_s=tuple(remaining.get(name, 0.0) for name in order))
            found[series.mode].append(asdict(point))
            found["exchange"] = asdict(_exchange(session, order))
            found["steps"] = _steps(payload["config"], session)
            _close(session)
        found["device"] = _name(world)
    (environment.run_dir / RESULT).write_text(json.dumps(found))


def time_together(payload: dict[str, Any]) -> None:
    """Kind "call" on several ranks: all-reduce on each number of ranks, the control plane, and by
    how much CPU processes slow each other down.
    """
    config, environment = parse_config(payload["config"]), ClusterEnvironment.detect()
    assert environment.run_dir is not None
    found: dict[str, Any] = {"all_reduce": {}, "together": {}}
    with open_world(config, environment) as world:
        threads = torch.get_num_threads()
        for count in payload["counts"]:
            group = dist.new_group(list(range(count)))
            _share_cores(world, threads, count)
            if world.rank < count:
                found["all_reduce"][count] = _all_reduce(world, group, payload["gradient_bytes"])
            world.barrier("all-reduce timed")
            if world.device.type == "cpu":
                seconds = _time_beside(config, world, payload, count)
                found["together"][count] = max(world.control.gather(seconds))
        found["vote_s"] = _median(lambda: world.control.any(False))
        found["gather_s"] = _median(lambda: world.control.gather(({"loss": 0.0}, 1.0)))
        if world.is_main:
            (environment.run_dir / RESULT).write_text(json.dumps(found))


def _open(config: RunConfig, world: World, series: Series, root: Path) -> Session:
    """A session as a rank with this share would have it, with nothing but steps to do."""
    spread: DistributedConfig = config.distributed.model_copy(
        update={"mode": Mode(series.mode), "shares": None}
    )
    alone = config.model_copy(
        update={
            "global_batch": series.share,
            "steps": 2**31,
            "epochs": None,
            "distributed": spread,
            "evaluation": config.evaluation.model_copy(update={"every_steps": None}),
            "checkpoint": config.checkpoint.model_copy(
                update={"every_steps": None, "keep_best": None}
            ),
        }
    )
    assert alone.task is not None, "a config without a task is refused before"
    run = RunDirectory.create(root / f"rank-{world.rank}-{series.mode}-{series.share}")
    task = import_object(alone.task.implementation)()
    return open_session(alone, task, replace(world, config=spread), run)


def _time(session: Session, budget_s: float) -> SharePoint:
    """Time steps as the Trainer takes them, its watchers included."""
    batches = session.source.open(session.share, session.progress.cursor)
    spent, steps = 0.0, 0
    while steps < LEAST_STEPS or (steps < WARM_UP_STEPS and spent < budget_s):
        spent, steps = spent + sum(_timed_step(session, batches)), steps + 1
    session.world.synchronize()
    timed: list[tuple[float, float]] = []
    spent = 0.0
    while len(timed) < LEAST_STEPS or (len(timed) < MOST_STEPS and spent < budget_s):
        timed.append(_timed_step(session, batches))
        spent += sum(timed[-1])
    session.world.synchronize()
    fetched = sum(fetch_s for fetch_s, _ in timed) / len(timed)
    return SharePoint(
        session.config.global_batch, trimmed_mean([sum(parts) for parts in timed]), fetched
    )


def _timed_step(session: Session, batches: Iterator[StepBatch]) -> tuple[float, float]:
    """One step of the Trainer's loop: seconds to fetch its data, and seconds for the rest."""
    began = time.perf_counter()
    ballot = session.world.control.call(stop=0)
    batch = next(batches)
    fetched = time.perf_counter()
    _take(session, batch)
    ballot.result()
    return fetched - began, time.perf_counter() - fetched


def _take(session: Session, batch: StepBatch) -> None:
    session.schedule()
    outcome = session.step.take(batch, session.progress.step)
    session.progress.step += 1
    session.progress.samples += batch.global_count
    session.progress.cursor = batch.cursor
    for watcher in session.watchers:
        watcher.after_step(session, batch, outcome)


def _remaining(session: Session) -> dict[str, float]:
    """For each parameter how long the last backward of a step still ran once its gradient was
    there, in seconds. A step that forms gradients without autograd gives none.
    """
    clock = _DeviceClock(session.world)
    marks: dict[str, Any] = {}

    def mark(name: str) -> Callable[[Any], None]:
        return lambda _: marks.update({name: clock.now()})

    hooks = [
        parameter.register_post_accumulate_grad_hook(mark(name))  # type: ignore[no-untyped-call]
        for name, parameter in session.model.named_parameters()
        if parameter.requires_grad
    ]
    _take(session, next(session.source.open(session.share, session.progress.cursor)))
    session.world.synchronize()
    for hook in hooks:
        hook.remove()
    seconds = {name: clock.since_first(moment) for name, moment in marks.items()}
    last = max(seconds.values(), default=0.0)
    return {name: last - at for name, at in seconds.items()}


class _DeviceClock:
    """Moments on the device's own time: events of its stream on a GPU, the host's clock else."""

    def __init__(self, world: World) -> None:
        self._on_gpu = world.device.type == "cuda"
        self._first = self.now()

    def now(self) -> Any:
        """A moment, for `since_first`."""
        if not self._on_gpu:
            return time.perf_counter()
        moment = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        moment.record()
        return moment

    def since_first(self, moment: Any) -> float:
        """Seconds since this clock was made; of a device that has been synchronised."""
        if self._on_gpu:
            return float(self._first.elapsed_time(moment)) / 1e3
        return float(moment - self._first)


def _exchange(session: Session, order: list[str]) -> Exchange:
    """What ranks would send: gradients in the order they come, then what a step waits for."""
    sizes = {
        name: p.numel() * p.element_size()
        for name, p in session.model.named_parameters()
        if p.requires_grad
    }
    late = [name for name in sizes if name not in order]
    batch = next(session.source.open(session.share, session.progress.cursor))
    few = max(1, session.task.granularity)
    micro = narrow(to_device(batch.data, session.world.device), 0, min(few, batch.count))
    arithmetic = Arithmetic(session.config.precision, session.world.device)
    with torch.no_grad(), arithmetic.autocast():
        losses = session.task.loss(session.model, micro)
    sums = [value.numel() * value.element_size() for value in losses.step_sums.values()]
    return Exchange(
        tuple(sizes[name] for name in [*order, *late]),
        (torch.int32.itemsize, *sums),
        int(session.config.distributed.bucket_cap_mb * 2**20),
    )


def _steps(given: dict[str, Any], session: Session) -> int:
    """Steps of the run as the user gave it."""
    if given["steps"]:
        return int(given["steps"])
    return session.source.steps_in_epochs(given["epochs"], given["global_batch"])


def _all_reduce(world: World, group: Any, gradient_bytes: list[int]) -> dict[str, float]:
    """Latency of a small sum that is waited for, and the time of all gradients in a row."""
    small = torch.zeros(1, device=world.device)
    gradients = [
        torch.zeros(max(1, size // 4), dtype=torch.float32, device=world.device)
        for size in gradient_bytes
    ]

    def one() -> None:
        dist.all_reduce(small, group=group)
        world.synchronize()

    def all_of_them() -> None:
        works = [dist.all_reduce(t, group=group, async_op=True) for t in gradients]
        for work in works:
            work.wait()
        world.synchronize()

    return {"latency_s": _median(one), "gradients_s": _median(all_of_them)}


def _time_beside(config: RunConfig, world: World, payload: dict[str, Any], count: int) -> float:
    """A step of a rank's share while `count` ranks take theirs, without any exchange."""
    if world.rank >= count:
        return 0.0
    alone = replace(world, rank=0, size=1, backend="none", control=LocalControl())
    series = Series("none", payload["shares"][str(count)], count)
    root = world.environment.run_dir
    assert root is not None
    session = _open(config, alone, series, root / f"rank-{world.rank}")
    seconds = _time(session, payload["budget_s"]).step_s
    _close(session)
    return seconds


def trimmed_mean(times: list[float]) -> float:
    """Mean without the smallest and largest tenth: what many steps take, save for rare hiccups."""
    cut = int(TRIMMED * len(times))
    kept = sorted(times)[cut : len(times) - cut]
    return sum(kept) / len(kept)


def _median(work: Callable[[], Any]) -> float:
    """Median time of some repeats, after one that warms up."""
    work()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return sorted(times)[_REPEATS // 2]


def _share_cores(world: World, threads: int, devices: int) -> None:
    """As many threads as the launcher gives a rank among `devices` on the CPU."""
    if world.device.type == "cpu":
        torch.set_num_threads(max(1, min(threads, (os.cpu_count() or 1) // devices)))


def _close(session: Session) -> None:
    session.strategy.teardown()
    session.events.close()
    if session.world.device.type == "cuda":
        torch.cuda.empty_cache()


def _name(world: World) -> str:
    return (
        torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU process"
    )
