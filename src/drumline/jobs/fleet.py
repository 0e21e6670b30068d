"""A machine as the queue sees it: which devices are free, and which may work together.

What speaks against a device is `planning.availability`'s, the choice among free ones is
`planning.recommend`'s. Here both are asked on behalf of a training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from drumline.errors import DeviceError
from drumline.hardware import Device, Machine
from drumline.jobs.queue import Fits, Host, Slot, Waiting
from drumline.planning.availability import (
    Need,
    units,
    why_gone,
    why_in_use,
    why_not,
    why_unwell,
)
from drumline.planning.recommend import recommend

CPU_TRAININGS = 2
"""How many trainings without devices run on one host at a time."""


@dataclass(frozen=True)
class Lease:
    """Who holds a device, and when it is predicted to be given back."""

    training_id: str
    free_at_ms: int | None = None


@dataclass(frozen=True)
class Taken:
    """What the database says about devices.

    Attributes:
        leases: By UUID.
        kept_back: Devices kept back by an operator, by UUID, and why.
        elsewhere: Trainings for which another host holds devices back.
        on_cpu: How many trainings without devices run on the host.
        locked: Devices that runs outside the queue hold, by UUID, and who they are.
        only_cpu: Whether no host has devices at all, so that "auto" means CPU processes.
    """

    leases: Mapping[str, Lease]
    kept_back: Mapping[str, str]
    elsewhere: frozenset[str] = frozenset()
    on_cpu: int = 0
    only_cpu: bool = False
    locked: Mapping[str, object] = field(default_factory=dict)


def host_of(host_id: str, machine: Machine, taken: Taken) -> Host:
    """The machine for `queue.decide`."""
    slots = tuple(_slot(device, taken) for device in units(machine))
    return Host(host_id, slots, _fits(machine, slots, taken), taken.elsewhere)


def _slot(device: Device, taken: Taken) -> Slot:
    instances = [unit.uuid for unit in device.mig_instances]
    related = {device.uuid, device.mig_parent_uuid or device.uuid, *instances}
    gone = why_gone(device)
    lease = next((taken.leases[uuid] for uuid in related if uuid in taken.leases), None)
    if lease is not None and gone is None:
        return Slot(device.uuid, "leased", lease.training_id, lease.free_at_ms)
    unwell = gone or why_unwell(device)
    if unwell:
        return Slot(device.uuid, "out", reason=unwell)
    kept = next((taken.kept_back[uuid] for uuid in related if uuid in taken.kept_back), None)
    if kept is not None:
        return Slot(device.uuid, "reserved", reason=kept)
    locked = next((taken.locked[uuid] for uuid in related if uuid in taken.locked), None)
    in_use = why_in_use(device) if locked is None else f"held by {locked}"
    return Slot(device.uuid, "busy", reason=in_use) if in_use else Slot(device.uuid)


def _fits(machine: Machine, slots: tuple[Slot, ...], taken: Taken) -> Fits:
    """Answers for devices that are not free yet as if they were, so that one can be waited for.
    Trainings that ask for the same get the same answer without a second look.
    """
    if_free = _as_if_free(machine, {s.uuid for s in slots if s.state in ("leased", "busy")})
    all_uuids = {slot.uuid for slot in slots}
    usable = sum(slot.state not in ("out", "reserved") for slot in slots)
    known: dict[object, tuple[str, ...] | None] = {}

    def look(job: Waiting, allowed: frozenset[str]) -> tuple[str, ...] | None:
        if job.gpus == 0 or (job.gpus == "auto" and taken.only_cpu):
            return () if taken.on_cpu < CPU_TRAININGS else None
        if job.gpu_ids:
            return _named(if_free, job, allowed)
        count = max(usable, 1) if job.gpus == "all" else job.gpus
        try:
            found = recommend(if_free, count, job.memory_bytes, all_uuids - allowed)
        except DeviceError:
            return None
        return tuple(device.uuid for device in found.devices)

    def fits(job: Waiting, allowed: Collection[str]) -> tuple[str, ...] | None:
        asked = (job.gpus, job.gpu_ids, job.memory_bytes, frozenset(allowed))
        if asked not in known:
            known[asked] = look(job, asked[3])
        return known[asked]

    return fits


def _as_if_free(machine: Machine, waited_for: Collection[str]) -> Machine:
    return replace(
        machine,
        devices=tuple(
            replace(
                _if_free(device, waited_for),
                mig_instances=tuple(_if_free(unit, waited_for) for unit in device.mig_instances),
            )
            for device in machine.devices
        ),
    )


def _if_free(device: Device, waited_for: Collection[str]) -> Device:
    if device.uuid not in waited_for:
        return device
    return replace(
        device,
        memory_free_bytes=device.memory_total_bytes,
        memory_used_bytes=None if device.memory_used_bytes is None else 0,
        processes=None if device.processes is None else (),
    )


def _named(machine: Machine, job: Waiting, allowed: Collection[str]) -> tuple[str, ...] | None:
    """The devices named, if all may be had and are large enough."""
    by_uuid = {unit.uuid: unit for unit in units(machine)}
    need = Need(job.memory_bytes)
    for uuid in job.gpu_ids:
        if uuid not in allowed or why_not(by_uuid[uuid], need):
            return None
    return job.gpu_ids
