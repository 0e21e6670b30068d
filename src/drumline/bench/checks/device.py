"""Checks of single devices: arithmetic and memory rates, each compared with its like."""

from __future__ import annotations

import fcntl
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from drumline.bench.checks.check import CheckContext, Seat, device_names
from drumline.bench.checks.finding import Finding, failed, passed, warned

SLOW = 0.85
"""A device below this part of the median of its like stands out; cards of one model differ by a
few percent."""

OF_PCIE = 0.5
"""Below this part of the PCIe link's nominal bandwidth something is wrong with it."""

_CPU_DTYPES, _QUICK_DTYPES = ("fp32",), ("fp32", "bf16")
_COPY_BYTES, _QUICK_COPY_BYTES = 256 * 2**20, 64 * 2**20
_SLOW_REMEDY = (
    "Look for heat, a power cap or other processes on it; leave it out, or give it a smaller share."
)


def measure_matmul(seat: Seat) -> dict[str, Any]:
    """TFLOP/s by dtype; an error message where one is not supported."""
    from drumline.bench.measure import DTYPES, matmul_tflops

    on_cpu = seat.device.type == "cpu"
    dtypes = _CPU_DTYPES if on_cpu else _QUICK_DTYPES if seat.quick else tuple(DTYPES)
    return {dtype: _or_error(partial(matmul_tflops, seat.device, dtype)) for dtype in dtypes}


def judge_matmul(context: CheckContext, measured: Sequence[dict[str, Any]]) -> Sequence[Finding]:
    """One line for each dtype."""
    dtypes = list(measured[0])
    unit = "TFLOP/s"
    return [
        compared(f"matmul {dtype}", context, [rates.get(dtype) for rates in measured], unit)
        for dtype in dtypes
    ]


def measure_copy(seat: Seat) -> float:
    """GB/s of a copy within the device."""
    from drumline.bench.measure import copy_bandwidth

    return copy_bandwidth(seat.device)


def judge_copy(context: CheckContext, measured: Sequence[float]) -> Sequence[Finding]:
    """One line for all devices."""
    return [compared("memory bandwidth", context, measured, "GB/s")]


def measure_from_host(seat: Seat) -> dict[str, Any]:
    """GB/s from host memory, pinned and, if there is time, not; one rank at a time, as they share
    the host's.
    """
    from drumline.bench.measure import host_to_device_bandwidth

    size = _QUICK_COPY_BYTES if seat.quick else _COPY_BYTES
    kinds = {"pinned": True} if seat.quick else {"pinned": True, "unpinned": False}
    with _one_at_a_time(seat.scratch):
        return {
            name: _or_error(
                partial(host_to_device_bandwidth, seat.device, pinned=pinned, size_bytes=size)
            )
            for name, pinned in kinds.items()
        }


def judge_from_host(context: CheckContext, measured: Sequence[dict[str, Any]]) -> Sequence[Finding]:
    """Pinned copies beside what PCIe should give; unpinned ones, if measured, for comparison."""
    nominal = [_pcie_gb_s(context, rank) for rank in range(len(measured))]
    rates = [rates["pinned"] for rates in measured]
    finding = compared("host to device, pinned", context, rates, "GB/s")
    slow = [
        f"{name} {rate:.1f} of {should:.0f} GB/s"
        for name, rate, should in zip(device_names(context), rates, nominal, strict=True)
        if isinstance(rate, float) and should and rate < OF_PCIE * should
    ]
    if slow and finding.status == "pass":
        remedy = (
            "See that the card has all its PCIe lanes (lspci -vv), and the NUMA node is its own."
        )
        finding = warned(finding.name, f"below its PCIe link: {'; '.join(slow)}", remedy, rates)
    if any("unpinned" not in rates for rates in measured):
        return [finding]
    unpinned = [rates["unpinned"] for rates in measured]
    return [finding, compared("host to device, unpinned", context, unpinned, "GB/s")]


def compared(name: str, context: CheckContext, rates: Sequence[Any], unit: str) -> Finding:
    """Rates of all devices, each beside the median of the devices of its model.

    Args:
        name: What was measured.
        context: With the devices, in the order of the rates.
        rates: Floats; text is an error, None a rank that gave nothing.
        unit: Of the rates.
    """
    names = device_names(context)
    value = dict(zip(names, rates, strict=True))
    broken = [f"{device}: {rate or 'not measured'}" for device, rate in value.items()
              if not isinstance(rate, float)]  # fmt: skip
    if broken:
        remedy = "Run it again with that device alone (--gpus); see the driver's log (dmesg)."
        return failed(name, "; ".join(broken), remedy, value)
    text = ", ".join(f"{device} {rate:.4g}" for device, rate in value.items()) + f" {unit}"
    models = [device.name for device in context.devices]
    slow = []
    for device, model, rate in zip(names, models, rates, strict=True):
        like = [r for r, m in zip(rates, models, strict=True) if m == model]
        median = statistics.median(like)
        if len(like) > 1 and rate < SLOW * median and not context.on_cpu:
            slow.append(f"{device} gives {rate / median:.0%} of the median of {len(like)} {model}")
    if slow:
        return warned(name, f"{'; '.join(slow)} ({text})", _SLOW_REMEDY, value)
    return passed(name, text, value)


def _pcie_gb_s(context: CheckContext, rank: int) -> float | None:
    from drumline.hardware.link import pcie_bandwidth_gb_s

    uuid = context.devices[rank].uuid
    device = next((one for one in context.machine.devices if one.uuid == uuid), None)
    if device is None:
        return None
    return pcie_bandwidth_gb_s(device.pcie_generation, device.pcie_width)


def _or_error(measure: Callable[[], float]) -> float | str:
    """One dtype or kind of memory that does not work leaves the others to be measured."""
    try:
        return measure()
    except (RuntimeError, ValueError) as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


@contextmanager
def _one_at_a_time(scratch: Path | None) -> Iterator[None]:
    """A lock among the ranks of this machine, where they have a folder in common."""
    if scratch is None:
        yield
        return
    with (scratch / "host-memory.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
