"""NVIDIA devices through NVML (the package nvidia-ml-py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from drumline.hardware.device import UNKNOWN_UUID, Device, in_pci_order, with_missing
from drumline.hardware.processes import Lookup, look_up
from drumline.hardware.providers.interface import Findings
from drumline.hardware.providers.nvidia_fields import (
    changing_fields,
    identity_fields,
    memory_fields,
    process_fields,
)
from drumline.hardware.providers.nvidia_links import read_links
from drumline.hardware.providers.nvml_handle import (
    LIBRARY_NOT_FOUND,
    NvmlHandle,
    device_words,
    driver_words,
    error_code,
)

GONE = "The device was there before and is not found any more."


class NvidiaProvider:
    """Reads NVIDIA devices. Each field and each device is guarded on its own.

    Args:
        nvml: The module pynvml, or one that answers like it.
        sysfs: Where the kernel tells a device's NUMA node.
        lookup: Tells owner and name of a process id.
    """

    def __init__(
        self, nvml: Any = None, *, sysfs: Path = Path("/sys"), lookup: Lookup = look_up
    ) -> None:
        self._nvml = nvml
        self._sysfs = sysfs
        self._lookup = lookup
        self._started = False
        self._probed = False
        self._handles: dict[str, Any] = {}
        self._devices: tuple[Device, ...] = ()

    def probe(self) -> Findings:
        """Read everything. See `Provider`."""
        self._probed = True
        found: list[Device] = []
        self._handles = {}
        try:
            self._start()
            count = self._nvml.nvmlDeviceGetCount()
        except ImportError:
            return Findings(
                problems=("NVIDIA devices cannot be read: nvidia-ml-py is not installed.",),
                installed=False,
            )
        except self._nvml.NVMLError as error:
            self._devices = in_pci_order(with_missing([], self._devices, GONE))
            installed = error_code(error) != LIBRARY_NOT_FOUND
            return Findings(self._devices, (), (driver_words(error),), installed=installed)
        for position in range(count):
            found.append(self._read(position))
        self._devices = in_pci_order(with_missing(found, self._devices, GONE))
        live = [(d, self._handles[d.uuid]) for d in self._devices if d.uuid in self._handles]
        return Findings(
            self._devices,
            read_links(self._nvml, live),
            _problems(self._devices),
            self._system("nvmlSystemGetDriverVersion"),
            _cuda_version(self._system("nvmlSystemGetCudaDriverVersion_v2")),
        )

    def sample(self) -> tuple[Device, ...]:
        """Read what changes. See `Provider`."""
        if not self._probed:
            self.probe()
        self._devices = tuple(self._resample(device) for device in self._devices)
        return self._devices

    def close(self) -> None:
        """Shut NVML down."""
        if not self._started:
            return
        self._started = False
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def _start(self) -> None:
        if self._nvml is None:
            self._nvml = import_module("pynvml")
        if not self._started:
            self._nvml.nvmlInit()
            self._started = True

    def _read(self, position: int) -> Device:
        nameless = Device(f"{UNKNOWN_UUID}nvidia-{position}", position, "cuda")
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(position)
        except self._nvml.NVMLError as error:
            return nameless.as_lost(device_words(error))
        asked = NvmlHandle(self._nvml, handle)
        identity = identity_fields(asked, self._sysfs)
        uuid = identity.pop("uuid")
        if uuid is None:
            return replace(nameless, **identity).as_lost(asked.problem or "It tells no UUID.")
        device = Device(uuid, position, "cuda", **identity)
        self._handles[uuid] = handle
        instances = self._instances(asked, device) if device.mig_enabled else ()
        return self._changed(replace(device, mig_instances=instances), asked)

    def _changed(self, device: Device, asked: NvmlHandle) -> Device:
        fields = changing_fields(asked, self._lookup)
        if asked.lost or _silent(device, fields):
            return device.as_lost(asked.problem or GONE)
        return replace(device, **fields, lost=False, problem=asked.problem)

    def _resample(self, device: Device) -> Device:
        if device.uuid not in self._handles:
            return device
        instances = tuple(
            self._instance_changed(instance, self._handles[instance.uuid])
            for instance in device.mig_instances
        )
        asked = NvmlHandle(self._nvml, self._handles[device.uuid])
        return self._changed(replace(device, mig_instances=instances), asked)

    def _instances(self, parent: NvmlHandle, device: Device) -> tuple[Device, ...]:
        instances = []
        for index in range(parent.get("nvmlDeviceGetMaxMigDeviceCount") or 0):
            handle = parent.get("nvmlDeviceGetMigDeviceHandleByIndex", index)
            if handle is None:  # slots without an instance
                continue
            asked = NvmlHandle(self._nvml, handle)
            uuid = asked.get("nvmlDeviceGetUUID")
            if uuid is None:
                continue
            self._handles[uuid] = handle
            ids = (
                asked.get("nvmlDeviceGetGpuInstanceId"),
                asked.get("nvmlDeviceGetComputeInstanceId"),
            )
            instance = Device(
                uuid,
                index,
                "cuda",
                name=asked.get("nvmlDeviceGetName"),
                pci_bus_id=device.pci_bus_id,
                compute_capability=device.compute_capability,
                numa_node=device.numa_node,
                mig_parent_uuid=device.uuid,
                mig_ids=None if None in ids else ids,
            )
            instances.append(self._instance_changed(instance, handle))
        return tuple(instances)

    def _instance_changed(self, instance: Device, handle: Any) -> Device:
        """Of an instance NVML tells memory and processes; sensors belong to the parent."""
        asked = NvmlHandle(self._nvml, handle)
        fields = {**memory_fields(asked), "processes": process_fields(asked, self._lookup)}
        if asked.lost or _silent(instance, fields):
            return instance.as_lost(asked.problem or GONE)
        return replace(instance, **fields, lost=False, problem=asked.problem)

    def _system(self, function: str) -> Any:
        try:
            answer = getattr(self._nvml, function)()
        except self._nvml.NVMLError:
            return None
        return answer.decode() if isinstance(answer, bytes) else answer


def _silent(before: Device, fields: dict[str, Any]) -> bool:
    """Whether a device that told its memory before now answers nothing at all."""
    answered = any(value is not None for value in fields.values())
    return before.memory_total_bytes is not None and not answered


def _problems(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(
        f"GPU {device.index} ({device.name or device.uuid}): {device.problem}"
        for device in devices
        if device.problem
    )


def _cuda_version(number: int | None) -> str | None:
    """NVML's 12040 is CUDA 12.4."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"
