"""The fields of one NVIDIA device, read from NVML: what it is, and what changes.

Units are turned into ours here: mW to W, NVML's bit masks to words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drumline.hardware.device import plain_pci_bus_id
from drumline.hardware.processes import Lookup, describe
from drumline.hardware.providers.nvml_handle import NvmlHandle

THROTTLE_WORDS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}


def identity_fields(device: NvmlHandle, sysfs: Path) -> dict[str, Any]:
    """What a device is. `uuid` is None where it is not told."""
    nvml = device.nvml
    pci = device.get("nvmlDeviceGetPciInfo")
    bus_id = plain_pci_bus_id(_text(pci.busId)) if pci is not None else None
    capability = device.get("nvmlDeviceGetCudaComputeCapability")
    mig_mode = device.get("nvmlDeviceGetMigMode")
    return {
        "uuid": _text(device.get("nvmlDeviceGetUUID")),
        "name": _text(device.get("nvmlDeviceGetName")),
        "pci_bus_id": bus_id,
        "compute_capability": tuple(capability) if capability is not None else None,
        "cores": device.get("nvmlDeviceGetNumGpuCores"),
        "max_sm_clock_mhz": device.get("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        "max_memory_clock_mhz": device.get("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        # The maximum, as an idle device trains its link down to save power.
        "pcie_generation": device.get("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width": device.get("nvmlDeviceGetMaxPcieLinkWidth"),
        "numa_node": _numa_node(bus_id, sysfs),
        "mig_enabled": bool(mig_mode[0]) if mig_mode is not None else None,
    }


def changing_fields(device: NvmlHandle, lookup: Lookup) -> dict[str, Any]:
    """How a device is doing, with its total memory."""
    nvml = device.nvml
    load = device.get("nvmlDeviceGetUtilizationRates")
    temperature = device.first(
        ("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        ("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU),
    )
    limit = device.first(
        ("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",)
    )
    return {
        **memory_fields(device),
        "utilization_percent": None if load is None else float(load.gpu),
        "temperature_c": None if temperature is None else float(temperature),
        "power_w": _watts(device.get("nvmlDeviceGetPowerUsage")),
        "power_limit_w": _watts(limit),
        "sm_clock_mhz": device.get("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": device.get("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "throttle_reasons": _throttle_reasons(device),
        "ecc_corrected": _ecc(device, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": _ecc(device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "processes": process_fields(device, lookup),
    }


def memory_fields(device: NvmlHandle) -> dict[str, int | None]:
    """Total, used and free bytes. The newer call keeps what the driver reserves out of `used`;
    the older counts it in.
    """
    version = getattr(device.nvml, "nvmlMemory_v2", None)
    newer = [("nvmlDeviceGetMemoryInfo", version)] if version is not None else []
    memory = device.first(*newer, ("nvmlDeviceGetMemoryInfo",))
    return {
        "memory_total_bytes": None if memory is None else memory.total,
        "memory_used_bytes": None if memory is None else memory.used,
        "memory_free_bytes": None if memory is None else memory.free,
    }


def process_fields(device: NvmlHandle, lookup: Lookup) -> Any:
    """The processes of a device, or None where it does not list them."""
    lists = [
        device.get("nvmlDeviceGetComputeRunningProcesses"),
        device.get("nvmlDeviceGetGraphicsRunningProcesses"),
    ]
    known = [processes for processes in lists if processes is not None]
    if not known:
        return None
    return describe(
        ((process.pid, process.usedGpuMemory) for processes in known for process in processes),
        lookup,
    )


def _throttle_reasons(device: NvmlHandle) -> tuple[str, ...] | None:
    mask = device.first(
        ("nvmlDeviceGetCurrentClocksEventReasons",),
        ("nvmlDeviceGetCurrentClocksThrottleReasons",),
    )
    if mask is None:
        return None
    return tuple(word for bit, word in THROTTLE_WORDS.items() if mask & bit)


def _ecc(device: NvmlHandle, kind: int) -> int | None:
    count: int | None = device.get(
        "nvmlDeviceGetTotalEccErrors", kind, device.nvml.NVML_VOLATILE_ECC
    )
    return count


def _numa_node(bus_id: str | None, sysfs: Path) -> int | None:
    """The NUMA node of a PCI device; the kernel says -1 where there is only one."""
    try:
        node = int((sysfs / "bus/pci/devices" / str(bus_id) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
