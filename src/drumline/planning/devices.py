"""Which devices a run gets, from what the user asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from drumline.errors import DeviceError
from drumline.hardware import Device, Machine, resolve_devices
from drumline.planning.availability import Need, label, why_held, why_not, why_too_small
from drumline.planning.recommend import recommend

CPU_PROCESSES = 2
"""How many processes `auto` starts on a machine without GPUs, cores permitting."""


@dataclass(frozen=True)
class PlannedDevice:
    """One device of a plan. `uuid` is None for a CPU process."""

    kind: str
    name: str
    uuid: str | None = None
    index: int | None = None
    simulated: bool = False


def choose_devices(
    asked: str,
    machine: Machine,
    occupied: Collection[str],
    at_most: int,
    memory_bytes: int | None = None,
) -> tuple[list[PlannedDevice], list[str]]:
    """The devices for `asked`, in rank order, and why.

    Args:
        asked: "auto", "all", a count, indices or UUIDs with commas, "cpu" or "cpu:N".
        machine: What is there.
        occupied: UUIDs of devices that somebody else holds.
        at_most: More than this many could not all be given work; bounds `auto`.
        memory_bytes: What the run needs on each device; None where it is not known.

    Raises:
        DeviceError: If what is asked for is not there or not free.
    """
    asked = asked.strip()
    if match := re.fullmatch(r"cpu(?::(\d+))?", asked):
        return _cpu(int(match.group(1) or 1)), [f"devices: {asked} as asked"]
    there = len(machine.usable)
    if asked == "auto" and there == 0:
        return _cpu_processes(machine, at_most)
    if asked in ("auto", "all") or re.fullmatch(r"\d+", asked):
        if asked.isdecimal() and int(asked) == 0:
            raise DeviceError(
                "0 devices were asked for.", remedy="For the device with index 0 write devices=0, ."
            )
        if asked == "all" and there == 0:
            raise DeviceError(
                "All GPUs were asked for, and this machine has none.",
                remedy="Use devices=cpu:N for N CPU processes over gloo.",
            )
        count: int | Literal["auto"] = (
            there if asked == "all" else int(asked) if asked != "auto" else "auto"
        )
        found = recommend(machine, count, memory_bytes, occupied, at_most=at_most)
        return [planned(device) for device in found.devices], list(found.reasons)
    chosen = resolve_devices(asked.removesuffix(","), machine)  # "0," is the device with index 0
    need = Need(memory_bytes, occupied)
    _check_named(chosen, machine, need)
    cautions = [
        f"devices: {label(device)} as asked, although {why}"
        for device in chosen
        if (why := why_not(device, need))
    ]
    return [planned(device) for device in chosen], [f"devices: {asked} as asked", *cautions]


def planned(device: Device) -> PlannedDevice:
    """A device as a plan names it."""
    return PlannedDevice(
        device.family, device.name or device.kind, device.uuid, device.index, device.simulated
    )


def _check_named(chosen: Sequence[Device], machine: Machine, need: Need) -> None:
    """A named device may be busy or unwell, but not be leased, too small, or one of several MIGs.

    Raises:
        DeviceError: If it is, with the nearest device that would do.
    """
    for device in chosen:
        why = why_held(device, need) or why_too_small(device, need.memory_bytes)
        if why:
            raise DeviceError(
                f"Device {label(device)} is {why}.",
                remedy=_instead(device, chosen, machine, need),
                uuid=device.uuid,
            )
    split = next((device for device in chosen if device.mig_parent_uuid), None)
    if split is not None and len(chosen) > 1:
        raise DeviceError(
            f"{label(split)} is one of {len(chosen)} devices, and CUDA shows a process no more "
            "than one MIG instance, and nothing beside it.",
            remedy="Name one MIG instance only, or whole devices.",
            uuid=split.uuid,
        )


def _instead(device: Device, chosen: Sequence[Device], machine: Machine, need: Need) -> str:
    free = [other for other in machine.usable if other not in chosen and not why_not(other, need)]
    like = [other for other in free if other.name == device.name] or free
    if like:
        return f"{label(like[0])} is free. Name it, or leave the choice to devices=auto."
    return "No other is free: wait for it, or use devices=cpu."


def _cpu_processes(machine: Machine, at_most: int) -> tuple[list[PlannedDevice], list[str]]:
    cores = machine.host.cpu_usable or 1
    count = max(1, min(CPU_PROCESSES, cores, at_most))
    return _cpu(count), [f"devices: no GPU here, so {count} CPU processes on {cores} cores"]


def _cpu(count: int) -> list[PlannedDevice]:
    if count < 1:
        raise DeviceError("0 CPU processes were asked for.", remedy="Use devices=cpu or cpu:N.")
    return [PlannedDevice("cpu", "CPU process") for _ in range(count)]
