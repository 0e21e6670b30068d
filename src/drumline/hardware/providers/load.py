"""How simulated devices are loaded over time: plain functions of time, no chance in them."""

from __future__ import annotations

import math
from typing import Any

from drumline.hardware.device import GpuProcess
from drumline.hardware.providers.cards import GIB, Card

# idle: free. steady: a training. waves: load that rises and falls once a minute. bursts: on for
# 10 s, off for 10 s. hot: a training slowed by heat. foreign: held by somebody else's process.
# lost: as steady, until the device falls off the bus.
PATTERNS = ("idle", "steady", "waves", "bursts", "hot", "foreign", "lost")
LOST_AFTER_S = 60.0
FIRST_PID = 900_000
OWNERS = {"foreign": "somebody-else"}


def load_fields(card: Card, pattern: str, index: int, elapsed_s: float) -> dict[str, Any]:
    """The changing fields of a device under a load pattern."""
    load = _load(pattern, index, elapsed_s)
    hot = pattern == "hot"
    held = 0 if pattern == "idle" else int(card.memory_gib * GIB * 0.6)
    used = held + GIB // 2
    clock = card.max_sm_clock_mhz * (0.55 if hot else 0.95 if load else 0.15)
    process = GpuProcess(FIRST_PID + index, OWNERS.get(pattern, "drumline"), held, "python")
    return {
        "memory_used_bytes": used,
        "memory_free_bytes": card.memory_gib * GIB - used,
        "utilization_percent": round(100 * load, 1),
        "temperature_c": 88.0 if hot else round(30 + 45 * load, 1),
        "power_w": round(card.power_limit_w * (0.12 + 0.8 * load), 1),
        "power_limit_w": float(card.power_limit_w),
        "sm_clock_mhz": int(clock),
        "memory_clock_mhz": card.max_memory_clock_mhz,
        "throttle_reasons": ("hardware thermal slowdown",) if hot else () if load else ("idle",),
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "processes": (process,) if held else (),
    }


def _load(pattern: str, index: int, elapsed_s: float) -> float:
    """Load between 0 and 1. Devices of one pattern are a little out of phase."""
    phase_s = elapsed_s + 3.0 * index
    if pattern == "idle":
        return 0.0
    if pattern == "waves":
        return 0.5 - 0.45 * math.cos(2 * math.pi * phase_s / 60)
    if pattern == "bursts":
        return 0.9 if phase_s % 20 < 10 else 0.0
    return 0.93 + 0.04 * math.sin(2 * math.pi * phase_s / 15)
