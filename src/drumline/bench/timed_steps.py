"""What a rank does in a calibration: real steps of a config, timed with one share after the other,
and the exchanges that more ranks would add. Results go to a JSON file beside the run's events.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from drumline.bench.step_timing import time_session
from drumline.bench.workload_trace import unit_bytes
from drumline.config import ClusterEnvironment, DistributedConfig, Mode, RunConfig, parse_config
from drumline.config.section import import_object
from drumline.distributed import World, open_world
from drumline.distributed.control import LocalControl
from drumline.distributed.strategies.summation import parcels_of
from drumline.planning.workload import Exchange
from drumline.run_directory import RunDirectory
from drumline.training.batches import narrow, to_device
from drumline.training.precision import Arithmetic
from drumline.training.session import Session, open_session, run_length
from drumline.training.source import MapSource
from drumline.training.step import blocking_bytes

RESULT = "calibration.json"
_REPEATS = 7
_TOGETHER = 3.0
"""Whole steps of all ranks are timed so much longer: what disturbs one of them disturbs all."""


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
        order: list[list[int]] = []
        for given in payload["series"]:
            series = Series(**given)
            _share_cores(world, threads, series.devices)
            session = _open(config, world, series, environment.run_dir)
            point = time_session(session, payload["budget_s"])
            order = order or _in_order(session, point.remaining_s)
            remaining = tuple(_remaining(parcel, point.remaining_s) for parcel in order)
            point = replace(point, remaining_s=remaining)
            found[series.mode].append(asdict(point))
            found["exchange"] = asdict(_exchange(session, order))
            found["steps"] = _steps(config, session)
            _close(session)
        found["device"] = _name(world)
    (environment.run_dir / RESULT).write_text(json.dumps(found))


def time_whole(payload: dict[str, Any]) -> None:
    """Kind "call" on several ranks: real steps of all ranks together, and nothing else."""
    config, environment = parse_config(payload["config"]), ClusterEnvironment.detect()
    assert environment.run_dir is not None
    with open_world(config, environment) as world:
        found = {"whole": _whole(config, world, payload, torch.get_num_threads())}
        if world.is_main:
            (environment.run_dir / RESULT).write_text(json.dumps(found))


def time_together(payload: dict[str, Any]) -> None:
    """Kind "call" on several ranks: real steps of all ranks together, all-reduce on each number of
    ranks, a share on one rank alone and on several at once, and the control plane.
    """
    config, environment = parse_config(payload["config"]), ClusterEnvironment.detect()
    assert environment.run_dir is not None
    found: dict[str, Any] = {"all_reduce": {}, "beside": {}}
    with open_world(config, environment) as world:
        threads = torch.get_num_threads()
        found["whole"] = _whole(config, world, payload, threads)
        for count in payload["counts"]:
            group = dist.new_group(list(range(count)))
            _share_cores(world, threads, count)
            if world.rank < count:
                found["all_reduce"][count] = _all_reduce(world, group, payload["gradient_bytes"])
            world.barrier("all-reduce timed")
            found["beside"][count] = _beside(config, world, payload, count)
        found["vote_s"] = _median(lambda: world.control.any(False))
        found["gather_s"] = _median(lambda: world.control.gather(({"loss": 0.0}, 1.0)))
        if world.is_main:
            (environment.run_dir / RESULT).write_text(json.dumps(found))


def _whole(
    config: RunConfig, world: World, payload: dict[str, Any], threads: int
) -> dict[str, Any]:
    """The steps of a training, in a process that has done nothing else before, as a training's."""
    root = world.environment.run_dir
    assert root is not None
    _share_cores(world, threads, world.size)
    series = Series(Mode.DISTRIBUTED.value, config.global_batch, world.size)
    session = _open(config, world, series, root)
    point = time_session(session, _TOGETHER * payload["budget_s"])
    _close(session)
    return _slowest(world.control.gather(asdict(point)))


def _open(config: RunConfig, world: World, series: Series, root: Path) -> Session:
    """A session as a rank with this share would have it, with nothing but steps to do."""
    spread: DistributedConfig = config.distributed.model_copy(
        update={"mode": Mode(series.mode), "shares": "equal"}
    )
    alone = config.model_copy(
        update={
            "global_batch": series.share,
            "steps": 2**31,
            "epochs": None,
            "epoch_end": "wrap",  # every step is a whole one
            "distributed": spread,
            "evaluation": config.evaluation.model_copy(update={"every_steps": None}),
            "checkpoint": config.checkpoint.model_copy(
                update={"every_steps": None, "keep_best": None}
            ),
        }
    )
    assert alone.task is not None, "a config without a task is refused before"
    name = f"rank-{world.rank}-{series.mode}-{series.share}-{world.size}"
    run = RunDirectory.create(root / name)
    task = import_object(alone.task.implementation)()
    return open_session(alone, task, replace(world, config=spread), run)


def _trained(session: Session) -> list[nn.Parameter]:
    return [p for p in session.model.parameters() if p.requires_grad]


def _in_order(session: Session, seconds: Sequence[float]) -> list[list[int]]:
    """Places of the trained parameters whose gradients travel together, in the order in which they
    are there.
    """
    trained = _trained(session)
    place = {id(parameter): number for number, parameter in enumerate(trained)}
    parcels = [[place[id(parameter)] for parameter in parcel] for parcel in parcels_of(trained)]
    return sorted(parcels, key=lambda parcel: -_remaining(parcel, seconds))


def _remaining(parcel: Sequence[int], seconds: Sequence[float]) -> float:
    """A parcel is there with the last of its gradients."""
    return min(seconds[place] for place in parcel)


def _exchange(session: Session, order: Sequence[Sequence[int]]) -> Exchange:
    """What ranks would send: gradients in the order they come, then what a step waits for."""
    sizes = [p.numel() * p.element_size() for p in _trained(session)]
    batch = next(session.source.open(session.share, session.progress.cursor))
    few = max(1, session.task.granularity)
    micro = narrow(to_device(batch.data, session.world.device), 0, min(few, batch.count))
    arithmetic = Arithmetic(session.config.precision, session.world.device)
    with torch.no_grad(), arithmetic.autocast():
        losses = session.task.loss(session.model, micro)
    return Exchange(
        tuple(sum(sizes[place] for place in parcel) for parcel in order),
        blocking_bytes(losses),
        int(session.config.distributed.bucket_cap_mb * 2**20),
        unit_bytes(session.model, session.task),
    )


def _steps(config: RunConfig, session: Session) -> int:
    """Steps of the run as the user gave it."""
    source = copy(session.source)
    if isinstance(source, MapSource):
        source.epoch_end = config.epoch_end
    return run_length(config, source)


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


def _beside(
    config: RunConfig, world: World, payload: dict[str, Any], count: int
) -> dict[str, dict[str, Any]]:
    """A rank's share on the first rank while all others wait, then on `count` ranks at once."""
    series = Series(Mode.NONE.value, payload["shares"][str(count)], count)
    root = world.environment.run_dir
    assert root is not None
    apart = replace(world, rank=0, size=1, backend="none", control=LocalControl())
    found: dict[str, dict[str, Any]] = {}
    for name, ranks in (("alone", 1), ("beside", count)):
        point = None
        if world.rank < ranks:
            session = _open(config, apart, series, root / f"{name}-{count}-{world.rank}")
            point = asdict(time_session(session, payload["budget_s"]))
            _close(session)
        found[name] = _slowest(world.control.gather(point))
    return found


def _slowest(points: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """The longest of each time, as ranks wait for each other."""
    timed = [point for point in points if point is not None]
    longest = {key: max(point[key] for point in timed) for key in ("step_s", "data_s", "compute_s")}
    return {**timed[0], **longest}


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
