"""Whether one device can be given to a run, and where not, why: the one place that decides it.

A device is held (leased, locked or kept back), unwell (lost, memory errors, badly slowed), in use
by somebody else, or too small; each reason is in words with its numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from drumline.hardware import Device, Machine

GIB = 2**30

FOREIGN_BYTES = 512 * 2**20
"""A device on which other processes hold more than this is in use; a desktop holds less."""

UNSEEN_BYTES = 2 * GIB
"""Memory in use beyond what the processes seen hold. Older drivers count their own, about 1 GiB."""

BADLY_SLOWED = frozenset({"hardware slowdown", "hardware thermal slowdown", "power brake"})
"""Throttle reasons that halve the clocks or worse; a power cap is normal under load."""


@dataclass(frozen=True)
class Need:
    """What a device must offer, and which devices are spoken for.

    Attributes:
        memory_bytes: The run's need on each device; None where it is not known.
        occupied: UUIDs that others hold, by a lease or by a lock file; a mapping says in words who
            they are.
        reserved: UUIDs that are kept back for other use.
        foreign_bytes: Other processes may hold this much on a device that counts as free.
    """

    memory_bytes: int | None = None
    occupied: Collection[str] = field(default=())
    reserved: Collection[str] = field(default=())
    foreign_bytes: int = FOREIGN_BYTES


def why_not(device: Device, need: Need) -> str | None:
    """The first reason, in words, why the device cannot be given; None where it can."""
    return (
        why_gone(device)
        or why_held(device, need)
        or why_unwell(device)
        or why_in_use(device, need.foreign_bytes)
        or why_too_small(device, need.memory_bytes)
    )


def why_gone(device: Device) -> str | None:
    """A device that is lost, or split by MIG and so no device any more."""
    if device.lost:
        return f"lost: {device.problem or 'it does not answer'}"
    if device.mig_enabled:
        count = len(device.mig_instances)
        return f"split by MIG into {count} instances; name one of them"
    return None


def why_held(device: Device, need: Need) -> str | None:
    """A lease, lock or reservation of the device, of its MIG parent, or of one of its instances."""
    related = {device.uuid, device.mig_parent_uuid, *(unit.uuid for unit in device.mig_instances)}
    held = next((uuid for uuid in need.occupied if uuid in related), None)
    if held is not None:
        who = need.occupied[held] if isinstance(need.occupied, Mapping) else "another training"
        return f"held by {who}"
    if related & set(need.reserved):
        return "reserved, kept back from trainings"
    return None


def why_unwell(device: Device) -> str | None:
    """Uncorrected memory errors, or hardware that has cut its own clocks."""
    if device.ecc_uncorrected:
        return f"{device.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
    slowed = [word for word in device.slowed_by if word in BADLY_SLOWED]
    if slowed:
        return f"slowed by {' and '.join(slowed)}{_sensors(device)}"
    return None


def why_in_use(device: Device, foreign_bytes: int = FOREIGN_BYTES) -> str | None:
    """Processes that hold more than `foreign_bytes`, those not visible from here among them."""
    processes = device.processes or ()
    seen = sum(process.memory_bytes or 0 for process in processes)
    if seen > foreign_bytes:
        largest = max(processes, key=lambda process: process.memory_bytes or 0)
        owner = f" of {largest.owner}" if largest.owner else ""
        more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
        return f"in use: process {largest.pid}{owner}{more} holds {gib(seen)}"
    unseen = (device.memory_used_bytes or 0) - seen
    if device.processes is not None and unseen > max(UNSEEN_BYTES, foreign_bytes):
        return f"in use: {gib(unseen)} are held by processes that cannot be seen from here"
    return None


def why_too_small(device: Device, memory_bytes: int | None) -> str | None:
    """Less memory than the run needs. A device that does not report its memory is not refused."""
    there = memory_to_give(device)
    if memory_bytes is None or there is None or there >= memory_bytes:
        return None
    total = device.memory_total_bytes
    of_total = f" of {gib(total)}" if total is not None and total != there else ""
    short = gib(memory_bytes - there)
    return f"too small: {gib(there)}{of_total} free, {gib(memory_bytes)} needed, short by {short}"


def memory_to_give(device: Device) -> int | None:
    """Bytes that a run can have now: what is free, or all where free memory is not reported."""
    if device.memory_free_bytes is None:
        return device.memory_total_bytes
    return device.memory_free_bytes


def memory_in_words(device: Device) -> str:
    """Free and total memory, for a device that can be given."""
    there, total = memory_to_give(device), device.memory_total_bytes
    if there is None:
        return "does not report its memory"
    return f"{gib(there)} free" + (f" of {gib(total)}" if total is not None else "")


def units(machine: Machine) -> list[Device]:
    """All that a process can be placed on, lost ones too: whole devices, or MIG instances."""
    return [
        unit
        for device in machine.devices
        for unit in ((device.mig_instances or (device,)) if device.mig_enabled else (device,))
    ]


def whole(devices: Sequence[Device]) -> list[Device]:
    """Those that are no MIG instances."""
    return [device for device in devices if device.mig_parent_uuid is None]


def label(device: Device) -> str:
    """A device as a line names it: index and model, or the UUID of a MIG instance."""
    if device.mig_parent_uuid is not None:
        return f"MIG instance {device.uuid}"
    return f"GPU {device.index} ({device.name}, {device.uuid})"


def gib(count: int) -> str:
    """Bytes in GiB; in MiB below one."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"


def _sensors(device: Device) -> str:
    told = []
    if device.temperature_c is not None:
        told.append(f"{device.temperature_c:.0f} °C")
    if device.sm_clock_mhz is not None and device.max_sm_clock_mhz is not None:
        told.append(f"{device.sm_clock_mhz} of {device.max_sm_clock_mhz} MHz")
    return f" ({', '.join(told)})" if told else ""
