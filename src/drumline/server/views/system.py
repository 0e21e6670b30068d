"""Hosts, health, and what the devices did over time, as the API shows them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from drumline.server.views.common import Time, View


class Reported(View):
    """A value over those devices that report it."""

    value: float | None = Field(description="The value; null where no device reports it.")
    reporting: int = Field(description="How many devices report it.")
    devices: int = Field(description="How many devices there are, lost ones among them.")


class Aggregate(View):
    """All devices together."""

    devices: int = Field(description="How many there are.")
    lost: int = Field(description="How many of them are lost.")
    memory_used_bytes: Reported = Field(description="Memory in use, together.")
    memory_total_bytes: Reported = Field(description="Memory, together.")
    utilization_percent: Reported = Field(description="Mean of the time at work.")
    temperature_c: Reported = Field(description="The highest temperature.")
    power_w: Reported = Field(description="Power drawn, together.")


class JobOnGpu(View):
    """What a device is leased to."""

    id: str = Field(description="The training's id.")
    type: str = Field(description="The kind of work: training.")


class Reading(View):
    """One device at one moment."""

    gpu_id: str = Field(description="Its UUID.")
    host: str = Field(description="The id of its host.")
    time: Time = Field(description="The moment.")
    utilization_percent: float | None = Field(description="Part of the time it was at work.")
    memory_used_bytes: int | None = Field(description="Memory in use.")
    memory_total_bytes: int | None = Field(description="Memory.")
    temperature_c: float | None = Field(description="Temperature.")
    power_w: float | None = Field(description="Power drawn.")
    sm_clock_mhz: int | None = Field(description="Clock of its processors.")
    memory_clock_mhz: int | None = Field(description="Clock of its memory.")
    throttle_reasons: list[str] | None = Field(description="What holds its clocks down.")
    job: JobOnGpu | None = Field(description="What it is leased to, if anything.")
    lost: bool = Field(description="Whether it is lost.")
    problem: str | None = Field(description="What is wrong with it, if anything is.")


class CurrentMetrics(View):
    """The last reading of every device, and all of them together."""

    gpus: list[Reading] = Field(description="One for each device and MIG instance.")
    aggregate: Aggregate = Field(description="All devices together.")
    problems: list[str] = Field(description="Why devices cannot be read, in words.")


class Band(View):
    """Lowest, mean and highest value in each stretch; null where nothing was reported."""

    min: list[float | None] = Field(description="The lowest.")
    mean: list[float | None] = Field(description="The mean.")
    max: list[float | None] = Field(description="The highest.")


class GpuSeries(View):
    """One device along the times."""

    gpu_id: str = Field(description="Its UUID.")
    readings: list[int] = Field(description="How many readings each stretch has.")
    memory_total_bytes: list[float | None] = Field(description="Memory.")
    throttle_reasons: list[list[str] | None] = Field(
        description="All that held its clocks down in the stretch; null: not reported."
    )
    utilization_percent: Band = Field(description="Part of the time it was at work.")
    memory_used_bytes: Band = Field(description="Memory in use.")
    temperature_c: Band = Field(description="Temperature.")
    power_w: Band = Field(description="Power drawn.")
    sm_clock_mhz: Band = Field(description="Clock of its processors.")
    memory_clock_mhz: Band = Field(description="Clock of its memory.")


class Points(View):
    """One field of all devices together, along the times."""

    value: list[float | None] = Field(description="The value; null where no device reports it.")
    reporting: list[int] = Field(description="How many devices report it.")


class Stretches(View):
    """The axis of times: equal stretches."""

    from_: Time = Field(alias="from", description="From when, as asked.")
    to: Time = Field(description="Until when, as asked.")
    bucket_ms: int = Field(description="How long each stretch is.")
    resolution_s: int = Field(description="The step of the rows it was read from; 1: readings.")
    times: list[Time] = Field(description="Where each stretch begins.")


class PerGpuMetrics(Stretches):
    """What each device did."""

    view: Literal["per_gpu"] = Field("per_gpu", description="Which view this is.")
    gpus: list[GpuSeries] = Field(description="One for each device.")


class AggregatedMetrics(Stretches):
    """What all devices did together."""

    view: Literal["aggregated"] = Field("aggregated", description="Which view this is.")
    devices: int = Field(description="How many devices were asked for.")
    memory_used_bytes: Points = Field(description="Memory in use, together.")
    memory_total_bytes: Points = Field(description="Memory, together.")
    utilization_percent: Points = Field(description="Mean of the time at work.")
    temperature_c: Points = Field(description="The highest temperature.")
    power_w: Points = Field(description="Power drawn, together.")


class Host(View):
    """One host of the service."""

    id: str = Field(description="Who it is.")
    name: str = Field(description="Its name.")
    online: bool = Field(description="Whether it was heard of lately.")
    last_seen: Time = Field(description="When it was last heard of.")
    first_seen: Time = Field(description="When it was first heard of.")
    problem: str | None = Field(
        description="Why its devices, or some, cannot be read, in words; null where all is well."
    )
    gpus: int = Field(description="How many devices it has, lost ones among them.")
    cpu_model: str | None = Field(description="Its processor.")
    cpu_logical: int | None = Field(description="How many logical CPUs it has.")
    memory_total_bytes: int | None = Field(description="Its memory.")
    memory_available_bytes: int | None = Field(description="What of it is free.")
    driver_version: str | None = Field(description="Version of the devices' driver.")
    cuda_driver_version: str | None = Field(description="Newest CUDA that the driver knows.")
    torch_version: str | None = Field(description="Version of PyTorch installed there.")


class Hosts(View):
    """All hosts of the service."""

    hosts: list[Host] = Field(description="By name.")


class Check(View):
    """One thing that the service rests on."""

    name: str = Field(description="database, sampling, agent, or a host's devices.")
    ok: bool = Field(description="Whether it is as it should be.")
    reason: str = Field(description="Why not, or what it is, in words.")


class Health(View):
    """How the service is. It answers with status 200 as long as it answers at all."""

    ok: bool = Field(description="Whether everything is as it should be.")
    version: str = Field(description="Of Drumline.")
    time: Time = Field(description="The service's clock.")
    checks: list[Check] = Field(description="What it rests on.")
