"""Devices as the API shows them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from drumline.server.views.common import Body, Plain, Time, View


class GpuStatus(StrEnum):
    """Whether a device can be had."""

    FREE = "free"
    LEASED = "leased"
    BUSY = "busy"
    RESERVED = "reserved"
    UNHEALTHY = "unhealthy"
    LOST = "lost"
    SPLIT = "split"


class GpuProcess(View):
    """A process that holds memory on a device."""

    pid: int = Field(description="Its number on the host.")
    owner: str | None = Field(description="Whose it is; null where that cannot be seen.")
    name: str | None = Field(description="What it is; null where that cannot be seen.")
    memory_bytes: int | None = Field(description="What it holds; null where not reported.")


class Holder(View):
    """The training that holds a device."""

    training_id: str = Field(description="Its id.")
    name: str = Field(description="Its name.")
    owner: str = Field(description="Whose it is.")
    attempt: int = Field(description="Which of its attempts, from 1.")
    lease_until: Time = Field(description="Until when the lease holds without a heartbeat.")
    reclaiming: bool = Field(description="The lease ran out; its processes are being ended.")


class Gpu(View):
    """One device, or one MIG instance, as it was last seen."""

    uuid: str = Field(description="Who it is, for ever.")
    index: int = Field(description="Its place in PCI order on its host; only a label.")
    host: str = Field(description="The id of its host.")
    name: str | None = Field(description="The model.")
    kind: str = Field(description="cuda or rocm, with `simulated-` before it where it is not real.")
    simulated: bool = Field(description="Whether it is not real.")
    status: GpuStatus = Field(
        description="free; leased (by a training of the queue); busy (with a process of somebody "
        "else); reserved (kept back by an operator); unhealthy; lost; or split by MIG, so that "
        "its instances are given in its place."
    )
    reason: str | None = Field(description="Why it is not free, in words; null where it is.")
    held_by: Holder | None = Field(description="The training that holds it, if one does.")
    waited_for_by: str | None = Field(
        description="The training that waits and for which it is held back, if there is one."
    )
    processes: list[GpuProcess] | None = Field(description="Who is on it; null: not reported.")
    memory_total_bytes: int | None = Field(description="Memory.")
    memory_used_bytes: int | None = Field(description="Memory in use.")
    memory_free_bytes: int | None = Field(description="Memory that is free.")
    utilization_percent: float | None = Field(description="Part of the time it was at work.")
    temperature_c: float | None = Field(description="Temperature.")
    power_w: float | None = Field(description="Power drawn.")
    power_limit_w: float | None = Field(description="Power it may draw.")
    sm_clock_mhz: int | None = Field(description="Clock of its processors.")
    memory_clock_mhz: int | None = Field(description="Clock of its memory.")
    max_sm_clock_mhz: int | None = Field(description="Highest clock of its processors.")
    throttle_reasons: list[str] | None = Field(description="What holds its clocks down.")
    ecc_corrected: int | None = Field(description="Corrected memory errors.")
    ecc_uncorrected: int | None = Field(description="Uncorrected memory errors.")
    compute_capability: str | None = Field(description='Of NVIDIA\'s devices, as "9.0".')
    pci_bus_id: str | None = Field(description="Its PCI address.")
    numa_node: int | None = Field(description="The part of the host it is nearest to.")
    mig_parent_uuid: str | None = Field(description="Of a MIG instance: the device it is part of.")
    seen: Time = Field(description="When this was so.")


class Gpus(View):
    """All devices of all hosts."""

    gpus: list[Gpu] = Field(description="Hosts by name, devices in PCI order.")
    counts: dict[GpuStatus, int] = Field(description="How many are in each status.")
    problems: list[str] = Field(
        description="Why devices that may be expected are not there or cannot be read, in words."
    )


class Recommendation(View):
    """The devices that suit best."""

    host: str = Field(description="The host they are on.")
    gpu_ids: list[str] = Field(description="UUIDs, in PCI order; empty: CPU processes.")
    reasons: list[str] = Field(description="Why these, in words.")


class ValidateGpus(Body):
    """A choice of devices to be looked at."""

    gpu_ids: Annotated[list[Plain], Field(min_length=1, max_length=256)] = Field(
        description="UUIDs, beginnings of UUIDs, or indices on `host`.",
        examples=[["GPU-5f0c2a9b-1d3e-4a57-9c11-2f6d0c3b7a10"]],
    )
    memory_mb: int | None = Field(
        None, ge=0, le=2**30, description="MiB that each must have free; null: not known."
    )
    host: Plain | None = Field(None, description="The host they are on; null: wherever they are.")


class ReserveGpu(Body):
    """Why a device is kept back."""

    reason: Annotated[Plain, Field(min_length=1, max_length=500)] = Field(
        description="For whom or what; shown to everybody.", examples=["for the demo on Friday"]
    )


class GpuVerdict(View):
    """Whether one device of a choice can be used now."""

    gpu_id: str = Field(description="Its UUID; what was asked for where no device is meant by it.")
    ok: bool = Field(description="Whether it can.")
    reason: str = Field(description="Why not, or what is free on it.")


class GpuVerdicts(View):
    """Whether a choice of devices can be used now."""

    ok: bool = Field(description="Whether all can, together.")
    reason: str | None = Field(description="What speaks against them together, if anything does.")
    verdicts: list[GpuVerdict] = Field(description="One for each, in the order asked.")
