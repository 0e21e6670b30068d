"""A short calibration: real steps of a config timed on one device, and the links between several.

The ranks' side is `timed_steps`. Shares are timed as they would fall to a rank on each number of
devices, so that a prediction needs no law of how time grows with samples. The links are those of
the devices that are there; for more devices than that a profile's links stand in, or those of the
largest number that could be measured.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drumline.bench import timed_steps
from drumline.config import Mode, RunConfig
from drumline.errors import BadInput, LaunchError
from drumline.hardware import Machine
from drumline.launch import LaunchRequest, launch
from drumline.planning.devices import PlannedDevice, choose_devices
from drumline.planning.plan import Plan, spread
from drumline.planning.profile import AllReduce, DeviceProfile, find_profile
from drumline.planning.speed import CalibratedSpeed, Control
from drumline.planning.workload import Calibration
from drumline.run_directory import RunDirectory

BUDGET_S = 1.0
"""Time for the steps of each share, after the warm-up."""


@dataclass(frozen=True)
class Ground:
    """What a calibration runs on."""

    config: RunConfig
    devices: tuple[PlannedDevice, ...]
    budget_s: float

    @property
    def on_cpu(self) -> bool:
        """Whether ranks are processes on the CPU."""
        return self.devices[0].kind == "cpu"


def calibrate(
    config: RunConfig,
    counts: Sequence[int],
    machine: Machine,
    *,
    profile: DeviceProfile | None = None,
    budget_s: float = BUDGET_S,
) -> CalibratedSpeed:
    """Time a config on one device of this machine, and its links.

    Args:
        config: The run.
        counts: Numbers of devices that will be asked about.
        machine: What is there.
        profile: Links for numbers of devices that are not there; by default the device's own.
        budget_s: Seconds for the steps of each share.

    Raises:
        BadInput: If the config names no task, or cannot be shared by so many devices.
        DeviceError: If there is no free device.
        LaunchError: If the steps failed.
    """
    if config.task is None:
        raise BadInput("The config names no task.", remedy="Set task.name.")
    config.task.check()
    devices = _devices(config, machine, max(counts))
    ground = Ground(config, devices, budget_s)
    shares = {count: max(_equal(config, count)) for count in sorted({1, *counts})}
    alone = _alone(ground, shares)
    several = [count for count in shares if 1 < count <= len(devices)]
    together = _together(ground, several, shares, alone["exchange"]) if several else {}
    calibration = Calibration.from_dict(
        {
            **alone,
            "kind": devices[0].kind,
            "slowdown": _slowdown(alone, together, shares, len(devices)),
        }
    )
    name = calibration.device
    measured = _links(together, calibration.exchange.gradient_bytes, name)
    stand_in = profile or find_profile(name)
    links = [*measured, *_others(stand_in, measured)]
    controls = {
        max(several): Control(together["vote_s"], together["gather_s"], config.logging.every_steps)
        for _ in together
        if several
    }
    described = DeviceProfile(
        name=name, kind="cpu" if ground.on_cpu else _kind(devices[0]), all_reduce=links
    )
    return CalibratedSpeed(calibration, described, controls)


def _devices(config: RunConfig, machine: Machine, most: int) -> tuple[PlannedDevice, ...]:
    """At most so many of the devices that the config asks for; as many processes on the CPU."""
    asked = config.devices.strip()
    if asked.startswith("cpu") or (asked == "auto" and not machine.usable):
        cores = machine.host.cpu_usable or os.cpu_count() or 1
        return tuple(choose_devices(f"cpu:{min(most, max(2, cores))}", machine, (), most)[0])
    found, _ = choose_devices(asked, machine, (), most)
    if found[0].simulated:
        raise BadInput(
            f"{found[0].name} is simulated; nothing can be timed on it.",
            remedy="Leave out --calibrate to estimate from a stored profile.",
        )
    return tuple(found[:most])


def _alone(ground: Ground, shares: dict[int, int]) -> dict[str, Any]:
    """Steps on one device: the whole batch in mode none, each share under DDP. On the CPU mode
    none also with each share, to compare with ranks that work beside each other.
    """
    series = []
    for count, share in shares.items():
        if count == 1 or ground.on_cpu:
            series.append({"mode": "none", "share": share, "devices": count})
        if count > 1:
            series.append({"mode": "distributed", "share": share, "devices": count})
    payload = {
        "config": ground.config.model_dump(mode="json"),
        "series": series,
        "budget_s": ground.budget_s,
    }
    return _call(ground, 1, timed_steps.time_alone.__name__, payload)


def _together(
    ground: Ground, several: Sequence[int], shares: dict[int, int], exchange: dict[str, Any]
) -> dict[str, Any]:
    payload = {
        "config": ground.config.model_dump(mode="json"),
        "counts": list(several),
        "shares": {str(count): shares[count] for count in several},
        "gradient_bytes": exchange["gradient_bytes"],
        "budget_s": ground.budget_s,
    }
    return _call(ground, max(several), timed_steps.time_together.__name__, payload)


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
            LaunchRequest(run, plan, "call", arguments, spread_once),
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
    if distributed.shares is not None and len(distributed.shares) != count:
        distributed = distributed.model_copy(update={"shares": None})
    return spread(config.model_copy(update={"distributed": distributed}), count)


def _slowdown(
    alone: dict[str, Any], together: dict[str, Any], shares: dict[int, int], there: int
) -> dict[int, float]:
    """By how much CPU processes slow each other down; more processes than were tried share the
    cores that there are.
    """
    by_share = {point["samples"]: point["step_s"] for point in alone["none"]}
    found = {
        int(count): max(1.0, seconds / by_share[shares[int(count)]])
        for count, seconds in together.get("together", {}).items()
    }
    if not found:
        return {}
    largest = max(found)
    beyond = {c: found[largest] * c / largest for c in shares if c > max(largest, there)}
    return {**found, **beyond}


def _links(together: dict[str, Any], gradient_bytes: Sequence[int], name: str) -> list[AllReduce]:
    """Alpha and beta so that the model gives the measured time for just these gradients."""
    found = []
    today = datetime.now(UTC).date().isoformat()
    for text, times in together.get("all_reduce", {}).items():
        size, calls = int(text), len(gradient_bytes)
        latency = min(times["latency_s"], times["gradients_s"] / (2 * max(1, calls)))
        moved = 2 * (size - 1) / size * sum(gradient_bytes)
        left = times["gradients_s"] - calls * latency
        found.append(
            AllReduce(
                world_size=size,
                latency_s=latency,
                bus_bytes_per_s=max(1.0, moved / left) if left > 0 else 1e15,
                source=f"measured: the gradients of the run, {size} × {name}",
                date=today,
            )
        )
    return found


def _others(stand_in: DeviceProfile | None, measured: Sequence[AllReduce]) -> list[AllReduce]:
    """Links of a profile for numbers of ranks that were not measured."""
    if stand_in is None:
        return []
    known = {entry.world_size for entry in measured}
    return [entry for entry in stand_in.all_reduce if entry.world_size not in known]


def _kind(device: PlannedDevice) -> Any:
    return "rocm" if device.kind == "rocm" else "cuda"
