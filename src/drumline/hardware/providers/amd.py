"""AMD devices through amdsmi (an optional package that comes with ROCm).

Untested on hardware: what is here is held against recorded answers in the shape that amdsmi 6 and
7 document. amdsmi gives memory in MiB, power in W, power caps in microwatts, temperatures in °C,
bandwidths in MB/s and "N/A" for what a device does not report.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

from drumline.hardware.device import (
    UNKNOWN_UUID,
    Device,
    in_pci_order,
    plain_pci_bus_id,
    with_missing,
)
from drumline.hardware.link import Link, pcie_link
from drumline.hardware.processes import Lookup, describe, look_up
from drumline.hardware.providers.interface import Findings

MIB = 2**20
NOT_FOUND = 31  # AMDSMI_STATUS_NOT_FOUND
GONE = "The driver no longer finds the device."
XGMI, PCIE = 2, 1  # the link types of amdsmi_topo_get_link_type
VIOLATIONS = {
    "active_prochot_thrm": "hardware thermal slowdown",
    "active_ppt_pwr": "power cap",
    "active_socket_thrm": "software thermal slowdown",
    "active_vr_thrm": "hardware thermal slowdown",
    "active_hbm_thrm": "hardware thermal slowdown",
}


class AmdProvider:
    """Reads AMD devices. Each field and each device is guarded on its own.

    Throttle reasons are read by `probe` only, as amdsmi takes 100 ms a device for them; a sample
    has None there.

    Args:
        smi: The module amdsmi, or one that answers like it.
        kfd: The kernel's device node, there only where the amdgpu driver is loaded.
        lookup: Tells owner and name of a process id.
    """

    def __init__(
        self, smi: Any = None, *, kfd: Path = Path("/dev/kfd"), lookup: Lookup = look_up
    ) -> None:
        self._smi = smi
        self._kfd = kfd
        self._lookup = lookup
        self._started = False
        self._probed = False
        self._handles: dict[str, Any] = {}
        self._devices: tuple[Device, ...] = ()

    def probe(self) -> Findings:
        """Read everything. See `Provider`."""
        self._probed = True
        self._handles = {}
        problem = self._start()
        if problem is not None:
            self._devices = in_pci_order(with_missing([], self._devices, GONE))
            told = (problem,) if problem else ()
            return Findings(self._devices, (), told, installed=bool(problem))
        try:
            handles = self._smi.amdsmi_get_processor_handles()
        except self._smi.AmdSmiException as error:
            self._devices = in_pci_order(with_missing([], self._devices, GONE))
            return Findings(self._devices, (), (f"The AMD driver reports: {_words(error)}",))
        found = [self._read(place, handle) for place, handle in enumerate(handles)]
        self._devices = in_pci_order(with_missing(found, self._devices, GONE))
        problems = tuple(
            f"GPU {device.index} ({device.name or device.uuid}): {device.problem}"
            for device in self._devices
            if device.problem
        )
        return Findings(self._devices, self._links(), problems, self._driver_version())

    def sample(self) -> tuple[Device, ...]:
        """Read what changes. See `Provider`."""
        if not self._probed:
            self.probe()
        self._devices = tuple(
            self._changed(device, self._handles[device.uuid])
            if device.uuid in self._handles
            else device
            for device in self._devices
        )
        return self._devices

    def close(self) -> None:
        """Shut amdsmi down."""
        if not self._started:
            return
        self._started = False
        try:
            self._smi.amdsmi_shut_down()
        except self._smi.AmdSmiException:
            return

    def _start(self) -> str | None:
        """None when ready; else why not, empty where there is no AMD device to speak of."""
        if self._smi is None:
            if not self._kfd.exists():
                return ""
            try:
                with redirect_stdout(io.StringIO()):  # amdsmi prints where its library is missing
                    self._smi = import_module("amdsmi")
            except (ImportError, KeyError, OSError):
                return "AMD devices are there but cannot be read: install ROCm's amdsmi package."
        if not self._started:
            try:
                self._smi.amdsmi_init()
            except self._smi.AmdSmiException as error:
                return f"The AMD driver reports: {_words(error)}"
            self._started = True
        return None

    def _read(self, place: int, handle: Any) -> Device:
        ask = _Guard(self._smi, handle)
        asic = ask("amdsmi_get_gpu_asic_info") or {}
        uuid = ask("amdsmi_get_gpu_device_uuid") or f"{UNKNOWN_UUID}amd-{place}"
        bus_id = ask("amdsmi_get_gpu_device_bdf")
        clocks = self._smi.AmdSmiClkType
        pcie = (ask("amdsmi_get_pcie_info") or {}).get("pcie_static", {})
        device = Device(
            uuid,
            place,
            "rocm",
            name=_known(asic.get("market_name")),
            pci_bus_id=plain_pci_bus_id(bus_id) if bus_id else None,
            gfx_target=_known(asic.get("target_graphics_version")),
            cores=_known(asic.get("num_compute_units")),
            max_sm_clock_mhz=_entry(ask("amdsmi_get_clock_info", clocks.GFX), "max_clk"),
            max_memory_clock_mhz=_entry(ask("amdsmi_get_clock_info", clocks.MEM), "max_clk"),
            pcie_generation=_known(pcie.get("pcie_interface_version")),
            pcie_width=_known(pcie.get("max_pcie_width")),
            numa_node=ask("amdsmi_topo_get_numa_node_number"),
        )
        self._handles[uuid] = handle
        device = self._changed(device, handle)
        return replace(device, throttle_reasons=None if device.lost else _violations(ask))

    def _changed(self, device: Device, handle: Any) -> Device:
        ask = _Guard(self._smi, handle)
        fields = _changing_fields(ask, self._lookup)
        if ask.lost:
            return device.as_lost(GONE)
        return replace(device, **fields, lost=False, problem=None)

    def _links(self) -> tuple[Link, ...]:
        live = [device for device in self._devices if not device.lost]
        return tuple(self._link(a, b) for a, b in combinations(live, 2))

    def _link(self, a: Device, b: Device) -> Link:
        ask, other = _Guard(self._smi, self._handles[a.uuid]), self._handles[b.uuid]
        kind = _entry(ask("amdsmi_topo_get_link_type", other), "type")
        rates = ask("amdsmi_get_minmax_bandwidth_between_processors", other)
        rate = _entry(rates, "max_bandwidth")
        if kind == XGMI:
            gb_s = rate / 1000 if rate else None
            return Link(a.uuid, b.uuid, "xgmi", bandwidth_gb_s=gb_s, via_switch=False)
        ends = [(device.uuid, device.pcie_generation, device.pcie_width) for device in (a, b)]
        return pcie_link(*ends, path=None)

    def _driver_version(self) -> str | None:
        asked = (_Guard(self._smi, handle) for handle in self._handles.values())
        told = (_entry(ask("amdsmi_get_gpu_driver_info"), "driver_version") for ask in asked)
        return next((version for version in told if version is not None), None)


class _Guard:
    """Asks one device; what it does not report is None. Not to be found is `lost`."""

    def __init__(self, smi: Any, handle: Any) -> None:
        self.smi, self._handle, self.lost = smi, handle, False

    def __call__(self, function: str, *arguments: Any) -> Any:
        call: Callable[..., Any] | None = getattr(self.smi, function, None)
        if call is None or self.lost:
            return None
        try:
            return _known(call(self._handle, *arguments))
        except self.smi.AmdSmiException as error:
            self.lost = getattr(error, "err_code", None) == NOT_FOUND
            return None


def _changing_fields(ask: _Guard, lookup: Lookup) -> dict[str, Any]:
    vram = ask("amdsmi_get_gpu_vram_usage")
    total, used = _entry(vram, "vram_total"), _entry(vram, "vram_used")
    power = ask("amdsmi_get_power_info")
    cap = _entry(ask("amdsmi_get_power_cap_info"), "power_cap")
    clocks = ask.smi.AmdSmiClkType
    errors = ask("amdsmi_get_gpu_total_ecc_count")
    processes = ask("amdsmi_get_gpu_process_list")
    return {
        "memory_total_bytes": None if total is None else total * MIB,
        "memory_used_bytes": None if used is None else used * MIB,
        "memory_free_bytes": None if None in (total, used) else (total - used) * MIB,
        "utilization_percent": _float(_entry(ask("amdsmi_get_gpu_activity"), "gfx_activity")),
        "temperature_c": _temperature(ask),
        "power_w": _float(
            _first(power, "current_socket_power", "socket_power", "average_socket_power")
        ),
        "power_limit_w": None if cap is None else cap / 1e6,
        "sm_clock_mhz": _entry(ask("amdsmi_get_clock_info", clocks.GFX), "clk"),
        "memory_clock_mhz": _entry(ask("amdsmi_get_clock_info", clocks.MEM), "clk"),
        "throttle_reasons": None,
        "ecc_corrected": _entry(errors, "correctable_count"),
        "ecc_uncorrected": _entry(errors, "uncorrectable_count"),
        "processes": None
        if processes is None
        else describe(((entry["pid"], _known(entry["mem"])) for entry in processes), lookup),
    }


def _temperature(ask: _Guard) -> float | None:
    """The edge sensor, or the hot spot on cards without one (MI200 and later)."""
    kinds, now = ask.smi.AmdSmiTemperatureType, ask.smi.AmdSmiTemperatureMetric.CURRENT
    for kind in (kinds.EDGE, kinds.HOTSPOT):
        value = ask("amdsmi_get_temp_metric", kind, now)
        if value is not None:
            return float(value)
    return None


def _violations(ask: _Guard) -> tuple[str, ...] | None:
    status = ask("amdsmi_get_violation_status")
    if status is None or all(_entry(status, key) is None for key in VIOLATIONS):
        return None
    words = [word for key, word in VIOLATIONS.items() if _entry(status, key)]
    return tuple(dict.fromkeys(words))


def _known(value: Any) -> Any:
    return None if value in ("N/A", "") else value


def _entry(answer: Any, key: str) -> Any:
    return None if answer is None else _known(answer.get(key))


def _first(answer: Any, *keys: str) -> Any:
    return next((found for key in keys if (found := _entry(answer, key)) is not None), None)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _words(error: Exception) -> str:
    information = getattr(error, "err_info", None)
    return str(information or error)
