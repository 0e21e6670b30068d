"""Devices: which there are, whether they can be had, which suit, whether a choice can be used."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query

from drumline.errors import BadInput
from drumline.server.availability import Availability, only_host
from drumline.server.config_rules import permitted
from drumline.server.problems import documented
from drumline.server.services import Given
from drumline.server.showing.gpus import gpu
from drumline.server.views.common import Plain
from drumline.server.views.gpus import (
    Gpu,
    Gpus,
    GpuVerdict,
    GpuVerdicts,
    Recommendation,
    ReserveGpu,
    ValidateGpus,
)

router = APIRouter(prefix="/system/gpus", tags=["devices"])

MIB = 2**20
Host = Annotated[
    Plain | None, Query(max_length=64, description="The id of the only host to look at.")
]


@router.get("")
def list_gpus(given: Given, host: Host = None) -> Gpus:
    """Every device and whether it can be had; where no driver answers, the reason."""
    availability = Availability(given)
    views = [view for view in availability.hosts() if host in (None, view.id)]
    gpus = [gpu(unit) for unit in availability.units(views)]
    problems = [f"{view.name}: {line}" for view in views for line in view.machine.problems]
    return Gpus(gpus=gpus, counts=Counter(one.status for one in gpus), problems=problems)


@router.get("/recommend", responses=documented(404, 504))
def recommend_gpus(
    given: Given,
    count: Annotated[
        int | None, Query(ge=1, le=256, description="How many; by default what suits.")
    ] = None,
    memory_mb: Annotated[
        int | None, Query(ge=0, le=2**30, description="MiB needed on each; by default not known.")
    ] = None,
    config: Annotated[
        str | None,
        Query(
            max_length=16_384,
            description="A run config as JSON, in the place of the other two: what it needs is "
            "then estimated, which takes seconds.",
        ),
    ] = None,
    host: Host = None,
) -> Recommendation:
    """The devices that suit best among those that are free, and why these."""
    availability = Availability(given)
    if config is not None:
        view = only_host(availability.hosts_there(host))
        checked = permitted(_read(config), given.settings)
        occupied = set().union(*availability.taken())
        plan = given.planner.plan(checked, view.machine, occupied)
        uuids = [device["uuid"] for device in plan["devices"] if device["uuid"]]
        return Recommendation(host=view.id, gpu_ids=uuids, reasons=plan["reasons"])
    memory_bytes = None if memory_mb is None else memory_mb * MIB
    view, found = availability.recommend(count, memory_bytes, host)
    return Recommendation(
        host=view.id,
        gpu_ids=[device.uuid for device in found.devices],
        reasons=list(found.reasons),
    )


@router.post("/validate", responses=documented(404))
def validate_gpus(body: ValidateGpus, given: Given) -> GpuVerdicts:
    """Whether a choice of devices can be used now, and what speaks against each."""
    memory_bytes = None if body.memory_mb is None else body.memory_mb * MIB
    told, together = Availability(given).validate(body.gpu_ids, memory_bytes, body.host)
    verdicts = [GpuVerdict(gpu_id=one.uuid, ok=one.ok, reason=one.reason) for one in told]
    ok = together is None and all(one.ok for one in verdicts)
    return GpuVerdicts(ok=ok, reason=together, verdicts=verdicts)


@router.get("/{gpu_id}", responses=documented(404))
def get_gpu(gpu_id: str, given: Given) -> Gpu:
    """One device, by its UUID or the beginning of it."""
    return gpu(Availability(given).unit(gpu_id))


@router.put("/{gpu_id}/reservation", responses=documented(404))
def reserve_gpu(gpu_id: str, body: ReserveGpu, given: Given) -> Gpu:
    """Keep a device back from all trainings. What runs on it runs on."""
    uuid = Availability(given).unit(gpu_id).device.uuid
    given.leases.reserve([uuid], body.reason)
    return gpu(Availability(given).unit(uuid))


@router.delete("/{gpu_id}/reservation", responses=documented(404))
def release_gpu(gpu_id: str, given: Given) -> Gpu:
    """Let trainings have a device again that was kept back."""
    uuid = Availability(given).unit(gpu_id).device.uuid
    given.leases.unreserve([uuid])
    given.wake()
    return gpu(Availability(given).unit(uuid))


def _read(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadInput("config is no JSON object.", remedy="Write it as JSON.", field="config")
    return value
