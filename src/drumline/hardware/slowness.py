"""Why a device may be slower than others of its kind, as far as its sensors tell."""

from __future__ import annotations

from drumline.hardware.device import Device

LOW_CLOCK = 0.8
"""A busy device below this part of its highest clock runs slower than it could."""


def why_slow(device: Device, own_pid: int) -> list[str]:
    """Likely causes in words, the most certain first; none where the sensors show nothing.

    Args:
        device: As sampled while it was at work, or right after.
        own_pid: The process that works on it; others are company it did not ask for.
    """
    causes = []
    if device.slowed_by:
        heat = "" if device.temperature_c is None else f" at {device.temperature_c:.0f} °C"
        causes.append(f"its driver reports {', '.join(device.slowed_by)}{heat}")
    clock, highest = device.sm_clock_mhz, device.max_sm_clock_mhz
    if clock is not None and highest and clock < LOW_CLOCK * highest:
        causes.append(f"its clock is at {clock:,} of {highest:,} MHz")
    others = [process.pid for process in device.processes or () if process.pid != own_pid]
    if others:
        causes.append(f"other processes use it: {', '.join(map(str, sorted(others)))}")
    return causes
