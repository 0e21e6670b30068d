"""From what services answer to what the API shows. Pure functions."""

from __future__ import annotations

from drumline.hardware import Device
from drumline.server.availability import Unit
from drumline.server.views.common import shown
from drumline.server.views.gpus import Gpu, GpuProcess, GpuStatus, Holder


def gpu(unit: Unit) -> Gpu:
    """A device and its status."""
    device, (status, reason) = unit.device, status_of(unit)
    reserved = unit.reserved
    capability = device.compute_capability
    return Gpu(
        uuid=device.uuid,
        index=device.index,
        host=unit.host.id,
        name=device.name,
        kind=device.kind,
        simulated=device.simulated,
        status=status,
        reason=reason,
        held_by=_holder(unit),
        waited_for_by=None if reserved is None else reserved.training_id,
        processes=_processes(device),
        memory_total_bytes=device.memory_total_bytes,
        memory_used_bytes=device.memory_used_bytes,
        memory_free_bytes=device.memory_free_bytes,
        utilization_percent=device.utilization_percent,
        temperature_c=device.temperature_c,
        power_w=device.power_w,
        power_limit_w=device.power_limit_w,
        sm_clock_mhz=device.sm_clock_mhz,
        memory_clock_mhz=device.memory_clock_mhz,
        max_sm_clock_mhz=device.max_sm_clock_mhz,
        throttle_reasons=_listed(device.throttle_reasons),
        ecc_corrected=device.ecc_corrected,
        ecc_uncorrected=device.ecc_uncorrected,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        pci_bus_id=device.pci_bus_id,
        numa_node=device.numa_node,
        mig_parent_uuid=device.mig_parent_uuid,
        seen=shown(unit.host.device_seen_ms.get(device.uuid, unit.host.last_seen_ms))
        if device.lost
        else shown(unit.host.last_seen_ms),
    )


def status_of(unit: Unit) -> tuple[GpuStatus, str | None]:
    """Whether a device can be had, and if not, why."""
    device, slot = unit.device, unit.slot
    if device.lost:
        return GpuStatus.LOST, device.problem or "It does not answer."
    if unit.silent_s is not None:
        silent = f"Its host has not been heard of for {unit.silent_s:.0f} s."
        return GpuStatus.LOST, silent
    if slot is None:
        return GpuStatus.SPLIT, f"Split by MIG into {len(device.mig_instances)} instances."
    if slot.state == "leased":
        return GpuStatus.LEASED, f"Held by training {slot.holder}."
    if slot.state == "out":
        return GpuStatus.UNHEALTHY, slot.reason
    if slot.state == "free" and device.problem is not None:
        return GpuStatus.UNHEALTHY, device.problem
    if slot.state == "free":
        return GpuStatus.FREE, None
    return GpuStatus(slot.state), slot.reason


def _holder(unit: Unit) -> Holder | None:
    held, training = unit.held, unit.holder
    if held is None:
        return None
    return Holder(
        training_id=held.training_id,
        name="" if training is None else training.name,
        owner="" if training is None else training.owner,
        attempt=held.attempt,
        lease_until=shown(held.lease_until_ms),
        reclaiming=held.reclaiming,
    )


def _processes(device: Device) -> list[GpuProcess] | None:
    if device.processes is None:
        return None
    return [
        GpuProcess(pid=one.pid, owner=one.owner, name=one.name, memory_bytes=one.memory_bytes)
        for one in device.processes
    ]


def _listed(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)
