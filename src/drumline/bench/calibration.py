"""A short calibration: real steps of a config timed on one device, and the links between several.

The ranks' side is `timed_steps`. Shares are timed as they would fall to a rank on each number of
devices, so that a prediction needs no law of how time grows with samples. The links are those of
the devices that are there, and so is how devices that work at once slow each other's reading down;
for more devices than that a profile's links stand in, or those of the largest number that could be
measured.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from drumline.bench import timed_steps
from drumline.config import Mode, RunConfig
from drumline.errors import BadInput, DeviceError, LaunchError
from drumline.hardware import Machine
from drumline.hardware.device_locks import DeviceLocked, DeviceLocks, lock_folder
from drumline.launch import LaunchRequest, launch
from drumline.planning.calibrated_speed import CalibratedSpeed
from drumline.planning.cost_model import predict
from drumline.planning.devices import PlannedDevice, choose_devices
from drumline.planning.plan import Plan, spread
from drumline.planning.profile import AllReduce, DeviceProfile, find_profile
from drumline.planning.speed import Control
from drumline.planning.timed_shares import Beside, Calibration
from drumline.run_directory import RunDirectory

_KINDS: dict[str, Literal["cuda", "rocm", "cpu"]] = {"cpu": "cpu", "rocm": "rocm"}

BUDGET_S = 1.0
"""Time for the whole steps of each share; reading and computing alone take as long once more."""


@dataclass(frozen=True)
class Ground:
    """What a calibration runs on. `locks` are those of its devices, which its ranks hold, too."""

    config: RunConfig
    devices: tuple[PlannedDevice, ...]
    budget_s: float
    locks: tuple[Path, ...] = ()

    @property
    def on_cpu(self) -> bool:
        """Whether ranks are processes on the CPU."""
        return self.devices[0].kind == "cpu"


def calibrate(
    config: RunConfig,
    counts: Sequence[int],
    machine: Machine,
    occupied: Collection[str] = (),
    *,
    profile: DeviceProfile | None = None,
    budget_s: float = BUDGET_S,
) -> CalibratedSpeed:
    """Time a config on one device of this machine, and its links.

    Args:
        config: The run.
        counts: Numbers of devices that will be asked about.
        machine: What is there.
        occupied: UUIDs of devices that somebody else holds; a mapping says who.
        profile: Links for numbers of devices that are not there; by default the device's own.
        budget_s: Seconds for the whole steps of each share.

    Raises:
        BadInput: If the config names no task, or cannot be shared by so many devices.
        DeviceError: If there is no free device, or one that is named is held, or taken meanwhile.
        LaunchError: If the steps failed.
    """
    if config.task is None:
        raise BadInput("The config names no task.", remedy="Set task.name.")
    config.task.check()
    devices = _devices(config, machine, occupied, max(counts))
    shares = {count: max(_equal(config, count)) for count in sorted({1, *counts})}
    several = [count for count in shares if 1 < count <= len(devices)]
    with _claimed(devices) as locks:
        ground = Ground(config, devices, budget_s, locks)
        alone = _alone(ground, shares)
        together = _together(ground, several, shares, alone["exchange"]) if several else {}
    timed = {**alone, "kind": devices[0].kind, "beside": {}, **_kept(together)}
    calibration = Calibration.from_dict(timed)
    company = company_of(calibration.beside, tuple(shares), shared_cores=ground.on_cpu)
    calibration = replace(calibration, beside=company)
    described = _described(calibration, together, profile)
    speed = CalibratedSpeed(calibration, described, _controls(together, config))
    unexplained = {count: unexplained_s(speed, count, shares[count]) for count in calibration.whole}
    return replace(speed, unexplained_s=unexplained)


def unexplained_s(speed: CalibratedSpeed, count: int, share: int) -> float:
    """What whole steps on several devices took beyond what the cost model adds up.

    Args:
        speed: With whole steps that were timed, and nothing said about them yet.
        count: On how many devices.
        share: Samples of each of those.
    """
    explained = predict(speed, Mode.DISTRIBUTED.value, (share,) * count, share)
    control = speed.control(count)
    gathered = 0.0 if control is None else control.gather_s / max(1, control.every_steps)
    assert explained.step_s is not None
    timed_s = speed.calibration.whole[count].step_s
    return timed_s - (explained.step_s - gathered)  # no metrics were gathered


def _kept(together: dict[str, Any]) -> dict[str, Any]:
    return {key: together[key] for key in ("beside", "whole") if key in together}


def company_of(
    beside: Mapping[int, Beside], counts: Sequence[int], *, shared_cores: bool
) -> dict[int, Beside]:
    """What was timed side by side, for each number of devices; the largest stands in for more.

    Args:
        beside: As timed.
        counts: Numbers of devices that are asked about.
        shared_cores: Whether more devices share what cores there are, as processes on the CPU do.
    """
    if not beside:
        return {}
    largest = max(beside)
    beyond = {
        count: beside[largest].times(count / largest if shared_cores else 1.0)
        for count in counts
        if count > largest
    }
    return {**beside, **beyond}


def _described(
    calibration: Calibration, together: dict[str, Any], asked: DeviceProfile | None
) -> DeviceProfile:
    """The device with its links: the measured ones, and those of a profile for other numbers."""
    name, own = calibration.device, find_profile(calibration.device)
    measured = links_of(together, calibration.exchange.gradient_bytes, name)
    return DeviceProfile(
        name=name,
        matches=[] if own is None else [own.name, *own.matches],
        kind=_KINDS.get(calibration.kind, "cuda"),
        all_reduce=with_stand_ins(measured, asked or own),
    )


def _controls(together: dict[str, Any], config: RunConfig) -> dict[int, Control]:
    """The control plane, by the number of ranks it was timed on."""
    if not together:
        return {}
    size = max(map(int, together["all_reduce"]))
    every = config.logging.every_steps
    return {size: Control(together["vote_s"], together["gather_s"], every)}


def _devices(
    config: RunConfig, machine: Machine, occupied: Collection[str], most: int
) -> tuple[PlannedDevice, ...]:
    """At most so many of the devices that the config asks for; as many processes on the CPU."""
    asked = config.devices.strip()
    if asked.startswith("cpu") or (asked == "auto" and not machine.usable):
        cores = machine.host.cpu_usable or os.cpu_count() or 1
        return tuple(choose_devices(f"cpu:{min(most, max(2, cores))}", machine, (), most)[0])
    found, _ = choose_devices(asked, machine, occupied, most)
    if found[0].simulated:
        raise BadInput(
            f"{found[0].name} is simulated; nothing can be timed on it.",
            remedy="Leave out --calibrate to estimate from a stored profile.",
        )
    return tuple(found[:most])


@contextmanager
def _claimed(devices: Sequence[PlannedDevice]) -> Iterator[tuple[Path, ...]]:
    """Hold the devices, so that nobody trains beside what is timed; gives their lock files."""
    uuids = [device.uuid for device in devices if device.uuid]
    if not uuids:
        yield ()
        return
    try:
        locks = DeviceLocks(lock_folder(), uuids)
    except DeviceLocked as taken:
        raise DeviceError(
            f"A device that was free is taken now: {taken}.",
            remedy="Others are taking devices at this moment: try again.",
        ) from None
    with locks:
        locks.tell()
        yield tuple(locks.paths)


def _alone(ground: Ground, shares: dict[int, int]) -> dict[str, Any]:
    """Steps on one device: the whole batch in mode none, each share under DDP."""
    series = [
        {"mode": "none" if count == 1 else "distributed", "share": share, "devices": count}
        for count, share in shares.items()
    ]
    payload = {
        "config": ground.config.model_dump(mode="json"),
        "series": series,
        "budget_s": ground.budget_s,
    }
    return _call(ground, 1, timed_steps.time_alone.__name__, payload)


def _together(
    ground: Ground,
    several: Sequence[int],
    shares: dict[int, int],
    exchange: dict[str, Any],
) -> dict[str, Any]:
    """Links, company and whole steps; on all devices at once, and whole steps on fewer of them."""
    config = ground.config.model_dump(mode="json")
    short = {"config": config, "budget_s": ground.budget_s}
    whole = {
        count: _call(ground, count, timed_steps.time_whole.__name__, short)["whole"]
        for count in several
        if count < max(several)
    }
    payload = {
        "config": config,
        "counts": list(several),
        "shares": {str(count): shares[count] for count in several},
        "gradient_bytes": exchange["gradient_bytes"],
        "budget_s": ground.budget_s,
    }
    found = _call(ground, max(several), timed_steps.time_together.__name__, payload)
    return {**found, "whole": {**whole, max(several): found["whole"]}}


def _call(ground: Ground, size: int, function: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Run a function of `timed_steps` on some ranks and read what it found."""
    backend = "gloo" if ground.on_cpu else "nccl"
    plan = Plan(Mode.DISTRIBUTED, backend, ground.devices[:size], size, (1,) * size, micro_batch=1)
    spread_once = ground.config.distributed.model_copy(update={"max_restarts": 0})
    with tempfile.TemporaryDirectory(prefix="drumline-calibration-") as folder:
        run = RunDirectory.create(Path(folder))
        run.write_config(ground.config.model_dump(mode="json"))
        arguments = (f"{timed_steps.__name__}:{function}", json.dumps(payload))
        lines: list[str] = []
        ended = launch(
            LaunchRequest(run, plan, "call", arguments, spread_once, locks=ground.locks),
            lambda _, line: lines.append(line),
        )
        result = run.path / timed_steps.RESULT
        if ended.exit_code or not result.exists():
            raise LaunchError(
                f"The calibration failed: {ended.message}",
                remedy=ended.remedy or "Train a few steps with drumline train to see why.",
                output=lines[-15:],
            )
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def _equal(config: RunConfig, count: int) -> tuple[int, ...]:
    distributed = config.distributed
    if distributed.fixed_shares is not None and len(distributed.fixed_shares) != count:
        distributed = distributed.model_copy(update={"shares": "equal"})
    return spread(config.model_copy(update={"distributed": distributed}), count)


def links_of(together: dict[str, Any], gradient_bytes: Sequence[int], name: str) -> list[AllReduce]:
    """Alpha and beta so that the model gives the measured time for just these gradients."""
    found = []
    today = datetime.now(UTC).date().isoformat()
    for text, times in together.get("all_reduce", {}).items():
        size, calls = int(text), max(1, len(gradient_bytes))
        latency = min(times["latency_s"], times["gradients_s"] / (2 * calls))
        moved = 2 * (size - 1) / size * sum(gradient_bytes)
        found.append(
            AllReduce(
                world_size=size,
                latency_s=latency,
                bus_bytes_per_s=max(1.0, moved / (times["gradients_s"] - calls * latency)),
                source=f"measured: the gradients of the run, {size} × {name}",
                date=today,
            )
        )
    return found


def with_stand_ins(
    measured: Sequence[AllReduce], stand_in: DeviceProfile | None
) -> list[AllReduce]:
    """Measured links, and those of a profile for other numbers of ranks. A datasheet's stand in
    only where nothing was measured: they have no latency.
    """
    if stand_in is None:
        return list(measured)
    known = {entry.world_size for entry in measured}
    others = [
        entry
        for entry in stand_in.all_reduce
        if entry.world_size not in known and (not measured or entry.latency_s is not None)
    ]
    return [*measured, *others]
