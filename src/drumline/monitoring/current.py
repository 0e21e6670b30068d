"""The newest readings of all hosts' devices, from the database that their agents write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from drumline.database import Database
from drumline.database.tables import (
    devices,
    gpu_metrics_history,
    gpu_metrics_jobs,
    gpu_metrics_states,
)
from drumline.hardware import Device
from drumline.monitoring.inventory import HostView, Inventory
from drumline.monitoring.readings import Job, Reading, throttle_words

RECENT_S = 15  # an older reading is not how the device is now
SILENT_S = 30.0
_MIB = 2**20


@dataclass(frozen=True)
class Current:
    """All devices as they are now as far as is known, and a reading of each.

    A device of a host that has not been heard of for `SILENT_S` is there, and says nothing.
    """

    devices: tuple[Device, ...]
    readings: tuple[Reading, ...]


def read_current(
    database: Database, now_ms: int, hosts: Collection[HostView] | None = None
) -> Current:
    """Devices and MIG instances of all hosts.

    Args:
        database: Where the inventory and the history are.
        now_ms: The time.
        hosts: The inventory, if it has been read already.

    Raises:
        DatabaseError: If the database cannot be reached.
    """
    views = Inventory(database).machines() if hosts is None else hosts
    recent = _recent(database, now_ms) if views else {}
    found: list[Device] = []
    readings: list[Reading] = []
    for view in views:
        silent_s = view.age_s(now_ms)
        for device in view.machine.devices:
            if silent_s > SILENT_S:
                device = _silent(device, f"Nothing was heard of its host for {silent_s:.0f} s.")  # noqa: PLW2901
            updated, own = _updated(device, recent, view.last_seen_ms)
            found.append(updated)
            readings.extend(own)
    return Current(tuple(found), tuple(readings))


def _updated(
    device: Device, recent: Mapping[str, Reading], seen_ms: int
) -> tuple[Device, list[Reading]]:
    """The device with its newest values, and readings of it and its instances."""
    readings = []
    for unit in (device, *device.mig_instances):
        newest = recent.get(unit.uuid)
        if newest is None or unit.lost or unit.problem:
            readings.append(Reading.of(unit, seen_ms))
        else:
            readings.append(newest)
    first = readings[0]
    return replace(
        device,
        utilization_percent=first.utilization_percent,
        memory_used_bytes=first.memory_used_bytes,
        temperature_c=first.temperature_c,
        power_w=first.power_w,
    ), readings


def _silent(device: Device, problem: str) -> Device:
    """The device without anything that changes; it is not known to be lost."""
    instances = tuple(_silent(unit, problem) for unit in device.mig_instances)
    gone = device.as_lost(problem)
    return replace(gone, lost=device.lost, problem=problem, mig_instances=instances)


def _recent(database: Database, now_ms: int) -> dict[str, Reading]:
    """The newest reading of each device that has one."""
    h, s, j = gpu_metrics_history.c, gpu_metrics_states.c, gpu_metrics_jobs.c
    query = (
        sa.select(
            devices.c.uuid,
            gpu_metrics_history,
            s.memory_total_mib,
            s.memory_clock_mhz,
            s.throttle_bits,
            j.job_id,
            j.job_type,
        )
        .join(devices, devices.c.id == h.device)
        .join(gpu_metrics_states, s.id == h.state)
        .outerjoin(gpu_metrics_jobs, j.id == s.job)
        .where(h.time_s > now_ms // 1000 - RECENT_S)
        .order_by(h.time_s)
    )
    with database.reading() as connection:
        return {row.uuid: _reading(row) for row in connection.execute(query)}


def _reading(row: Any) -> Reading:
    return Reading(
        row.uuid,
        row.time_s * 1000,
        row.utilization_percent,
        _bytes(row.memory_used_mib),
        _bytes(row.memory_total_mib),
        row.temperature_c,
        None if row.power_dw is None else row.power_dw / 10,
        row.sm_clock_mhz,
        row.memory_clock_mhz,
        throttle_words(row.throttle_bits),
        None if row.job_id is None else Job(row.job_id, row.job_type),
    )


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * _MIB
