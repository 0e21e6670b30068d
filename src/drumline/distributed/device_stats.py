"""How full a process's device is, by what torch's allocator reports."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DeviceStats:
    """Memory of one device, in bytes; None where the device does not report it.

    Attributes:
        device: As torch names it: "cuda:0", "cpu".
        allocated_bytes: Held by this process's tensors.
        reserved_bytes: Held by torch's caching allocator, tensors included.
        peak_bytes: The most that tensors held since the process began.
        total_bytes: The device's memory.
    """

    device: str
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    total_bytes: int | None = None


def device_stats(device: torch.device) -> DeviceStats:
    """The memory of a device. The CPU reports nothing: torch does not count there."""
    if device.type != "cuda":
        return DeviceStats(str(device))
    return DeviceStats(
        str(device),
        allocated_bytes=torch.cuda.memory_allocated(device),
        reserved_bytes=torch.cuda.memory_reserved(device),
        peak_bytes=torch.cuda.max_memory_allocated(device),
        total_bytes=torch.cuda.get_device_properties(device).total_memory,
    )
