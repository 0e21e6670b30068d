"""Devices that a run has lost, and the plan for those that are left.

Looks only after an attempt has failed. What follows is decided by `policy`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from drumline.config import Mode, RunConfig
from drumline.config.load import override
from drumline.errors import DrumlineError
from drumline.hardware import Machine
from drumline.planning import Plan, plan
from drumline.planning.availability import units, why_gone
from drumline.planning.devices import PlannedDevice
from drumline.planning.shares import cut_shares

PROBE_S = 30.0
"""A driver that has lost a device may hang; after so long nothing is known."""


@dataclass(frozen=True)
class Loss:
    """What has gone.

    Attributes:
        lost: The devices, each with its reason, in words.
        plan: For those that are left; None if the run cannot go on there.
        overrides: Keys of the config that go with the plan.
        spare: Devices that are left and that the plan has no place for; they may stand in at the
            next loss.
        weights: The shares that the config fixed for the devices it began with.
        refused: Why it cannot go on.
        remedy: What to do then.
    """

    lost: tuple[str, ...]
    plan: Plan | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    spare: tuple[PlannedDevice, ...] = ()
    weights: Mapping[PlannedDevice, int] = field(default_factory=dict)
    refused: str = ""
    remedy: str = ""


def find_loss(
    config: RunConfig,
    made: Plan,
    micro_batch: int,
    probe: Callable[[], Machine],
    before: Loss | None = None,
) -> Loss | None:
    """What a plan's devices have lost; None if they are all there, or nobody can tell.

    The run goes on with the same global batch, and so the same result, on as many of the devices
    that are left as its mode can use. Ranks get more samples and no larger micro-batch, so that
    what they hold of a batch does not grow.

    Args:
        config: The run.
        made: The plan of the attempt that failed.
        micro_batch: The most samples a forward held there.
        probe: Says what is there now.
        before: The loss that the plan was made for, if it was.
    """
    if all(device.uuid is None for device in made.devices):
        return None
    machine = _within(probe, PROBE_S)
    if machine is None:
        return None
    held = made.devices if before is None else (*made.devices, *before.spare)
    gone = _gone(held, machine)
    if not gone.keys() & set(made.devices):
        return None
    lost = tuple(f"{_label(device)} is {why}" for device, why in gone.items())
    left = [device for device in held if device not in gone]
    if not left:
        return Loss(lost, refused="no device is left", remedy="See the driver's log (dmesg).")
    weights = _weights(config, made) if before is None else before.weights
    return _planned(config, made.mode, machine, left, weights, micro_batch, lost)


def _planned(
    config: RunConfig,
    mode: Mode,
    machine: Machine,
    left: Sequence[PlannedDevice],
    weights: Mapping[PlannedDevice, int],
    micro_batch: int,
    lost: tuple[str, ...],
) -> Loss:
    """The plan for the most of the devices left with which the config can be planned."""
    first: DrumlineError | None = None
    for count in range(len(left), 0, -1):
        kept = left[:count]
        shares = [weights.get(device, 0) for device in kept]
        overrides = _overrides(config, mode, shares, micro_batch)
        named = "devices=" + ",".join(str(device.uuid) for device in kept) + ","
        try:
            # Devices of a run that has just ended may still show its memory: they are named, and
            # those named are taken as they are.
            smaller = override(config, [named, *(f"{key}={value}" for key, value in overrides)])
            found = plan(smaller, machine)
        except DrumlineError as error:
            first = first or error
        else:
            made = replace(found, devices=tuple(kept))
            return Loss(lost, made, overrides, spare=tuple(left[count:]), weights=weights)
    assert first is not None
    return Loss(lost, refused=first.message, remedy=first.remedy)


def _overrides(
    config: RunConfig, mode: Mode, weights: Sequence[int], micro_batch: int
) -> tuple[tuple[str, str], ...]:
    """Keys that the ranks need: the micro-batch as it was, mode sharded where the plan chose it
    because a replica fits no device, and fixed shares in proportion.
    """
    found = [("micro_batch", str(micro_batch))]
    if config.distributed.mode is Mode.AUTO and mode is Mode.SHARDED:
        found.append(("distributed.mode", Mode.SHARDED.value))
    if any(weights):
        granularity = config.task.granularity if config.task else 1
        shares = cut_shares(config.global_batch, weights, granularity)
        found.append(("distributed.shares", str(list(shares)).replace(" ", "")))
    return tuple(found)


def _weights(config: RunConfig, made: Plan) -> dict[PlannedDevice, int]:
    """The fixed shares of a plan's devices; none where they are not one for each device."""
    fixed = config.distributed.fixed_shares or []
    return dict(zip(made.devices, fixed, strict=True)) if len(fixed) == len(made.devices) else {}


def _gone(devices: Sequence[PlannedDevice], machine: Machine) -> dict[PlannedDevice, str]:
    """Devices that the machine does not show any more, or shows as lost, with the reason."""
    there = {unit.uuid: unit for unit in units(machine)}
    found = {}
    for device in devices:
        if device.uuid is None:
            continue
        unit = there.get(device.uuid)
        why = "lost: the driver does not show it any more" if unit is None else why_gone(unit)
        if why is not None:
            found[device] = why
    return found


def _label(device: PlannedDevice) -> str:
    return f"GPU {device.index} ({device.name}, {device.uuid})"


def _within(probe: Callable[[], Machine], seconds: float) -> Machine | None:
    """What a probe says, unless it breaks or takes too long."""
    found: list[Machine] = []

    def look() -> None:
        try:
            found.append(probe())
        except DrumlineError:
            return

    thread = threading.Thread(target=look, name="probe", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None
