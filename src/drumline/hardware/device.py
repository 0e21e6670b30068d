"""One accelerator as it was at one moment: what it is, how it is doing, who uses it.

A field that the device does not report is None, which screens show as "n/a"; it is never 0 and
never an exception. Reading devices is the work of the providers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

# Reasons in `throttle_reasons` that mean a busy device runs slower than it could. The others
# ("idle", clocks set on purpose) are normal.
SLOWING_REASONS = frozenset(
    {
        "power cap",
        "hardware slowdown",
        "software thermal slowdown",
        "hardware thermal slowdown",
        "power brake",
        "board limit",
        "reliability",
    }
)

# Begins the stand-in for the UUID of a device that does not tell its own.
UNKNOWN_UUID = "unknown-"

# What a lost device can no longer say. Its identity and total memory stay as last known.
CHANGING_FIELDS = (
    "memory_used_bytes",
    "memory_free_bytes",
    "utilization_percent",
    "temperature_c",
    "power_w",
    "power_limit_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "throttle_reasons",
    "ecc_corrected",
    "ecc_uncorrected",
    "processes",
)


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a device. Owner and name are None where they are not seen,
    as for processes outside a container.
    """

    pid: int
    owner: str | None = None
    memory_bytes: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Device:
    """One accelerator, or one MIG instance of one.

    `index` is the position in PCI-bus order among the accelerators of the machine and only a
    label; of a MIG instance it is the position on its parent. `kind` is "cuda" or "rocm", with
    "simulated-" before it where `simulated` is set. `ecc_*` count errors since the
    driver was loaded. `cores` are CUDA cores or AMD compute units. `mig_ids` are the ids of the GPU
    instance and the compute instance. A `lost` device is gone or cannot be reached at all.
    `problem` says in plain words what is wrong with the device.
    """

    uuid: str
    index: int
    kind: str
    name: str | None = None
    pci_bus_id: str | None = None
    compute_capability: tuple[int, int] | None = None
    gfx_target: str | None = None
    cores: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilization_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    numa_node: int | None = None
    mig_enabled: bool | None = None
    mig_parent_uuid: str | None = None
    mig_ids: tuple[int, int] | None = None
    mig_instances: tuple[Device, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    simulated: bool = False
    lost: bool = False
    problem: str | None = None

    @property
    def family(self) -> str:
        """ "cuda" or "rocm", whether simulated or not."""
        return self.kind.removeprefix("simulated-")

    @property
    def slowed_by(self) -> tuple[str, ...]:
        """The throttle reasons that make work slower; empty where none is reported."""
        return tuple(word for word in self.throttle_reasons or () if word in SLOWING_REASONS)

    def as_lost(self, problem: str) -> Device:
        """The same device after it has disappeared: who it was stays, how it was doing goes."""
        unknown = dict.fromkeys(CHANGING_FIELDS)
        instances = tuple(instance.as_lost(problem) for instance in self.mig_instances)
        return replace(self, **unknown, mig_instances=instances, lost=True, problem=problem)  # type: ignore[arg-type]


def plain_pci_bus_id(text: str) -> str:
    """A PCI address as the kernel writes it: "00000000:1B:00.0" gives "0000:1b:00.0"."""
    match = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(?:\.([0-9a-fA-F]+))?", text)
    if match is None:
        return text.lower()
    domain, bus, slot = (int(part, 16) for part in match.groups()[:3])
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{int(match.group(4) or '0', 16):x}"


def in_pci_order(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices sorted by PCI address and numbered from 0; those without an address come last."""
    ordered = sorted(devices, key=_pci_key)
    return tuple(replace(device, index=index) for index, device in enumerate(ordered))


def with_missing(found: list[Device], known: Iterable[Device], problem: str) -> list[Device]:
    """`found`, and each of the `known` devices that is not among them, as lost.

    A device that is found but lost keeps the identity it had before. One that does not say who it
    is any more is taken to be one of the missing.
    """
    before = {device.uuid: device for device in known}
    named = [
        before[device.uuid].as_lost(device.problem or problem)
        if device.lost and device.uuid in before
        else device
        for device in found
        if not device.uuid.startswith(UNKNOWN_UUID)
    ]
    nameless = [device for device in found if device.uuid.startswith(UNKNOWN_UUID)]
    uuids = {device.uuid for device in named}
    missing = [device for uuid, device in before.items() if uuid not in uuids]
    reasons = [device.problem or problem for device in nameless]
    lost = [
        device.as_lost(reasons[place] if place < len(reasons) else problem)
        for place, device in enumerate(missing)
    ]
    return named + lost + nameless[len(missing) :]


def _pci_key(device: Device) -> tuple[int, list[int], int]:
    if device.pci_bus_id is None:
        return (1, [], device.index)
    parts = re.split(r"[:.]", device.pci_bus_id)
    try:
        return (0, [int(part, 16) for part in parts], device.index)
    except ValueError:
        return (1, [], device.index)
