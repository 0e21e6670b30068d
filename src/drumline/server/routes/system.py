"""Hosts, health, the last readings, and the history of the devices."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from drumline import __version__
from drumline.database import DatabaseError, now_ms
from drumline.monitoring.aggregate import aggregate
from drumline.monitoring.readings import Job, Reading, readings_of
from drumline.server.availability import Availability, silence_s
from drumline.server.services import Given
from drumline.server.showing.metrics import aggregated, per_gpu
from drumline.server.views.common import Plain, milliseconds, shown
from drumline.server.views.system import (
    Aggregate,
    AggregatedMetrics,
    Check,
    CurrentMetrics,
    Health,
    Host,
    Hosts,
    JobOnGpu,
    PerGpuMetrics,
)
from drumline.server.views.system import Reading as ReadingView

router = APIRouter(prefix="/system", tags=["system"])

HOUR_MS = 3_600_000
Metrics = Annotated[AggregatedMetrics | PerGpuMetrics, Field(discriminator="view")]


@router.get("/metrics")
def get_metrics(
    given: Given,
    view: Annotated[
        Literal["aggregated", "per_gpu"], Query(description="All together, or each device.")
    ] = "aggregated",
    from_: Annotated[
        datetime | None, Query(alias="from", description="From when; by default an hour before.")
    ] = None,
    to: Annotated[datetime | None, Query(description="Until when; by default now.")] = None,
    points: Annotated[
        int, Query(ge=2, le=10_000, description="So many stretches of time at most.")
    ] = 500,
    gpu_ids: Annotated[
        list[Plain] | None, Query(max_length=256, description="Which devices; by default all.")
    ] = None,
    job_id: Annotated[
        Plain | None, Query(max_length=64, description="Only while this training held them.")
    ] = None,
) -> Metrics:
    """What the devices did over time, at the resolution that the number of points asks for."""
    to_ms = now_ms() if to is None else milliseconds(to, "to")
    from_ms = max(0, to_ms - HOUR_MS) if from_ is None else milliseconds(from_, "from")
    views = Availability(given).hosts() if gpu_ids is None else []
    uuids = gpu_ids or [device.uuid for view in views for device in view.machine.devices]
    series = given.history.range(uuids, from_ms, to_ms, points, job_id)
    return aggregated(series) if view == "aggregated" else per_gpu(series)


@router.get("/metrics/current")
def get_current_metrics(given: Given) -> CurrentMetrics:
    """The last reading of every device, and all of them together."""
    views = Availability(given).hosts()
    held = given.leases.held()

    def job_of(uuid: str) -> Job | None:
        return Job(held[uuid].training_id) if uuid in held else None

    readings = [
        _reading(reading, view.id)
        for view in views
        for reading in readings_of(view.machine.devices, view.last_seen_ms, job_of)
    ]
    together = aggregate(device for view in views for device in view.machine.devices)
    problems = [f"{view.name}: {line}" for view in views for line in view.machine.problems]
    return CurrentMetrics(
        gpus=readings, aggregate=Aggregate.model_validate(together.as_dict()), problems=problems
    )


@router.get("/hosts")
def list_hosts(given: Given) -> Hosts:
    """All hosts, whether they were heard of lately or not."""
    now = now_ms()
    return Hosts(
        hosts=[
            Host(
                id=view.id,
                name=view.name,
                online=silence_s(view, now) is None,
                last_seen=shown(view.last_seen_ms),
                first_seen=shown(view.first_seen_ms),
                problem=view.problem,
                gpus=len(view.machine.devices),
                cpu_model=view.machine.host.cpu_model,
                cpu_logical=view.machine.host.cpu_logical,
                memory_total_bytes=view.machine.host.memory_total_bytes,
                memory_available_bytes=view.machine.host.memory_available_bytes,
                driver_version=view.machine.host.driver_version,
                cuda_driver_version=view.machine.host.cuda_driver_version,
                torch_version=view.machine.host.torch_version,
            )
            for view in Availability(given).hosts()
        ]
    )


@router.get("/health")
def get_health(given: Given) -> Health:
    """How the service is, and if its devices cannot be read, why. Always with status 200."""
    checks = [*_database(given), *given.running()]
    return Health(
        ok=all(check.ok for check in checks),
        version=__version__,
        time=shown(now_ms()),
        checks=checks,
    )


def _database(given: Given) -> list[Check]:
    now = now_ms()
    try:
        views = Availability(given).hosts()
    except DatabaseError as error:
        return [Check(name="database", ok=False, reason=error.message)]
    engine = "SQLite" if given.database.is_sqlite else "PostgreSQL"
    checks = [Check(name="database", ok=True, reason=engine)]
    for view in views:
        silent_s = silence_s(view, now)
        told = view.problem
        if silent_s is not None:
            told = f"not heard of for {silent_s:.0f} s"
        count = len(view.machine.devices)
        checks.append(
            Check(
                name=f"host {view.name}",
                ok=told is None,
                reason=told or f"{count} device{'' if count == 1 else 's'}",
            )
        )
    return checks


def _reading(reading: Reading, host: str) -> ReadingView:
    job, told = reading.job, reading.throttle_reasons
    return ReadingView(
        gpu_id=reading.device_uuid,
        host=host,
        time=shown(reading.time_ms),
        utilization_percent=reading.utilization_percent,
        memory_used_bytes=reading.memory_used_bytes,
        memory_total_bytes=reading.memory_total_bytes,
        temperature_c=reading.temperature_c,
        power_w=reading.power_w,
        sm_clock_mhz=reading.sm_clock_mhz,
        memory_clock_mhz=reading.memory_clock_mhz,
        throttle_reasons=None if told is None else list(told),
        job=None if job is None else JobOnGpu(id=job.id, type=job.type),
        lost=reading.lost,
        problem=reading.problem,
    )
