"""A workload and a profile in round numbers, so that times can be worked out on paper."""

from __future__ import annotations

from typing import Any

from drumline.config import Precision
from drumline.planning.profile import AllReduce, DeviceProfile, Figure
from drumline.planning.profiled_speed import ProfiledSpeed
from drumline.planning.workload import Exchange, Workload

MB = 10**6


def figure(value: float) -> Figure:
    return Figure(value=value, source="measured: by hand", date="2026-01-31")


def link(world_size: int, latency_s: float | None = 1e-5, bus: float = 1e9) -> AllReduce:
    return AllReduce(
        world_size=world_size,
        latency_s=latency_s,
        bus_bytes_per_s=bus,
        source="measured: by hand",
        date="2026-01-31",
    )


def profile(**changes: Any) -> DeviceProfile:
    """1 TFLOP/s, 1 TB/s of memory, 10 us a kernel, 10 GB/s from the host, 1 GB/s of links."""
    fields: dict[str, Any] = {
        "name": "Abacus",
        "matches": ["NVIDIA Abacus 8GB"],
        "matmul_flop_per_s": {"fp32": figure(1e12)},
        "memory_bytes_per_s": figure(1e12),
        "launch_s": figure(1e-5),
        "host_to_device_bytes_per_s": figure(1e10),
        "all_reduce": [link(2), link(4), link(8)],
    }
    return DeviceProfile(**{**fields, **changes})


def workload(**changes: Any) -> Workload:
    """1 GFLOP, 10 MB of traffic and 10 kB of input a sample; two gradients of 30 MB and 10 MB."""
    fields: dict[str, Any] = {
        "flop_per_sample": 1e9,
        "traffic_per_sample": 10 * MB,
        "traffic_per_pass": 40 * MB,
        "traffic_per_step": 200 * MB,
        "kernels_per_pass": 50,
        "kernels_per_step": 10,
        "sample_bytes": 10_000,
        "parameters": 10 * MB,
        "steps": 1000,
        "exchange": Exchange((30 * MB, 10 * MB), (4,)),
    }
    return Workload(**{**fields, **changes})


def speed(**changes: Any) -> ProfiledSpeed:
    return ProfiledSpeed(
        changes.pop("workload", workload()),
        changes.pop("profile", profile()),
        Precision.FP32,
        **changes,
    )
