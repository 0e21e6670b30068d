"""What a slow device's sensors tell."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.hardware import Device, GpuProcess, why_slow

OWN = 7


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({}, []),
        ({"throttle_reasons": ("idle",)}, []),
        (
            {"throttle_reasons": ("power cap", "idle"), "temperature_c": 61.0},
            ["its driver reports power cap at 61 °C"],
        ),
        (
            {"throttle_reasons": ("hardware thermal slowdown",), "sm_clock_mhz": 900}
            | {"max_sm_clock_mhz": 1980},
            [
                "its driver reports hardware thermal slowdown",
                "its clock is at 900 of 1,980 MHz",
            ],
        ),
        ({"sm_clock_mhz": 1700, "max_sm_clock_mhz": 1980}, []),
        ({"sm_clock_mhz": 1700}, []),  # compared with nothing
        ({"processes": (GpuProcess(OWN),)}, []),
        (
            {"processes": (GpuProcess(91), GpuProcess(OWN), GpuProcess(12))},
            ["other processes use it: 12, 91"],
        ),
    ],
)
def test_causes_by_hand(fields: dict[str, Any], causes: list[str]) -> None:
    assert why_slow(Device("GPU-1", 0, "cuda", **fields), OWN) == causes
