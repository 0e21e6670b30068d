"""The history's series as the API shows them.

The models are filled without being checked again: up to a million numbers that come from our own
tables.
"""

from __future__ import annotations

from typing import Any

from drumline.monitoring.history.series import DeviceSeries, Series, aggregate_series
from drumline.server.views.common import shown
from drumline.server.views.system import (
    AggregatedMetrics,
    Band,
    GpuSeries,
    PerGpuMetrics,
    Points,
)

METRICS = (
    "utilization_percent",
    "memory_used_bytes",
    "temperature_c",
    "power_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
)


def per_gpu(series: Series) -> PerGpuMetrics:
    """Each device along the times."""
    return PerGpuMetrics.model_construct(
        **_axis(series), gpus=[_device(device) for device in series.devices], view="per_gpu"
    )


def aggregated(series: Series) -> AggregatedMetrics:
    """All devices together along the times."""
    fields: dict[str, Any] = {
        name: Points.model_construct(value=list(points.value), reporting=list(points.reporting))
        for name, points in aggregate_series(series).items()
    }
    if not series.devices:
        nothing = Points(value=[None] * len(series.times_ms), reporting=[0] * len(series.times_ms))
        fields = dict.fromkeys(fields, nothing)
    return AggregatedMetrics.model_construct(
        **_axis(series), devices=len(series.devices), view="aggregated", **fields
    )


def _axis(series: Series) -> dict[str, Any]:
    return {
        "from_": shown(series.from_ms),
        "to": shown(series.to_ms),
        "bucket_ms": series.bucket_ms,
        "resolution_s": series.resolution_s,
        "times": series.times,
    }


def _device(device: DeviceSeries) -> GpuSeries:
    bands: dict[str, Any] = {
        name: Band.model_construct(min=list(band.min), mean=list(band.mean), max=list(band.max))
        for name, band in ((name, device.metrics[name]) for name in METRICS)
    }
    return GpuSeries.model_construct(
        gpu_id=device.device_uuid,
        readings=list(device.readings),
        memory_total_bytes=list(device.memory_total_bytes),
        throttle_reasons=[None if told is None else list(told) for told in device.throttle_reasons],
        **bands,
    )
