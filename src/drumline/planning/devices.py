"""Which devices a run gets, from what the user asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from drumline.errors import DeviceError
from drumline.hardware import Device, Machine, resolve_devices

CPU_PROCESSES = 2
"""How many processes `auto` starts on a machine without GPUs, cores permitting."""

FOREIGN_BYTES = 512 * 2**20
"""A device on which other processes hold more than this is in use; a desktop holds less."""


@dataclass(frozen=True)
class PlannedDevice:
    """One device of a plan. `uuid` is None for a CPU process."""

    kind: str
    name: str
    uuid: str | None = None
    index: int | None = None
    simulated: bool = False


def choose_devices(
    asked: str, machine: Machine, occupied: Collection[str], at_most: int
) -> tuple[list[PlannedDevice], list[str]]:
    """The devices for `asked`, in rank order, and why.

    Args:
        asked: "auto", "all", a count, indices or UUIDs with commas, "cpu" or "cpu:N".
        machine: What is there.
        occupied: UUIDs of devices that somebody else holds.
        at_most: More than this many could not all be given work; bounds `auto`.

    Raises:
        DeviceError: If what is asked for is not there or not free.
    """
    asked = asked.strip()
    if match := re.fullmatch(r"cpu(?::(\d+))?", asked):
        return _cpu(int(match.group(1) or 1)), [f"devices: {asked} as asked"]
    there = machine.usable
    free = [device for device in there if _is_free(device, occupied)]
    if asked == "auto":
        return _auto(machine, there, free, at_most)
    if asked == "all":
        return _exactly(there, free, len(there)), ["devices: all GPUs as asked"]
    if re.fullmatch(r"\d+", asked):
        if int(asked) == 0:
            raise DeviceError(
                "0 devices were asked for.", remedy="For the device with index 0 write devices=0, ."
            )
        return _exactly(there, free, int(asked)), [f"devices: {asked} free GPUs"]
    chosen = resolve_devices(asked.removesuffix(","), machine)  # "0," is the device with index 0
    taken = [device for device in chosen if device.uuid in occupied]
    if taken:
        raise DeviceError(
            f"Device {_label(taken[0])} is held by another training.",
            remedy="Wait for it, or leave the choice to devices=auto.",
        )
    return [_planned(device) for device in chosen], [f"devices: {asked} as asked"]


def _auto(
    machine: Machine, usable: Sequence[Device], free: list[Device], at_most: int
) -> tuple[list[PlannedDevice], list[str]]:
    if usable and not free:
        raise DeviceError(
            f"None of the {len(usable)} GPUs is free.",
            remedy="Wait, name devices yourself, or use devices=cpu.",
        )
    if free:
        chosen = free[:at_most]
        return [_planned(device) for device in chosen], [
            f"devices: {len(chosen)} of {len(usable)} GPUs, those that are free"
        ]
    cores = machine.host.cpu_usable or 1
    count = max(1, min(CPU_PROCESSES, cores, at_most))
    return _cpu(count), [f"devices: no GPU here, so {count} CPU processes on {cores} cores"]


def _exactly(usable: Sequence[Device], free: list[Device], count: int) -> list[PlannedDevice]:
    there = len(usable)
    if there == 0:
        raise DeviceError(
            f"{count or 'All'} GPUs were asked for, and this machine has none.",
            remedy=f"Use devices=cpu:{max(count, 1)} for CPU processes over gloo.",
        )
    if count > len(free):
        held = there - len(free)
        raise DeviceError(
            f"{count} GPUs were asked for, and this machine has {there}"
            + (f", {held} of them not free." if held else "."),
            remedy=f"Use devices={len(free)} or fewer." if free else "Wait until one is free.",
            asked=count,
            there=there,
        )
    return [_planned(device) for device in free[:count]]


def _is_free(device: Device, occupied: Collection[str]) -> bool:
    foreign = sum(process.memory_bytes or 0 for process in device.processes or ())
    return not device.lost and device.uuid not in occupied and foreign <= FOREIGN_BYTES


def _planned(device: Device) -> PlannedDevice:
    return PlannedDevice(
        device.family, device.name or device.kind, device.uuid, device.index, device.simulated
    )


def _cpu(count: int) -> list[PlannedDevice]:
    if count < 1:
        raise DeviceError("0 CPU processes were asked for.", remedy="Use devices=cpu or cpu:N.")
    return [PlannedDevice("cpu", "CPU process") for _ in range(count)]


def _label(device: Device) -> str:
    return f"{device.index} ({device.name}, {device.uuid})"
