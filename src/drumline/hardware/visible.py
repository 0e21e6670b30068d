"""Which physical devices CUDA shows a process, and in which order.

The values of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are passed in; reading the environment is
left to `config.environment`. The rules are CUDA's, and where its documentation is silent, those
by which torch counts devices:

- No value shows all devices, an empty one none.
- Numbers count devices in the order of CUDA_DEVICE_ORDER. A number ends at the first character
  that is no digit, so that "1gpu" is 1.
- Where the first entry begins with "GPU-" or "MIG-", all are UUIDs or their beginnings.
- The first entry that fits no device, or several, ends the list. So does one of another form.
- An entry given twice makes the whole list empty.
- MIG: a process sees one instance only, the first named, or the first of a device that is split.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from drumline.hardware.device import Device

PCI_BUS_ID = "PCI_BUS_ID"


@dataclass(frozen=True)
class VisibleDevices:
    """The devices as the process numbers them from 0.

    `exact` is False where the order rests on a guess about FASTEST_FIRST. `stopped_at` is the
    first entry that CUDA does not take, with all after it; None where all were taken.
    """

    devices: tuple[Device, ...]
    exact: bool
    stopped_at: str | None = None


def visible_devices(
    devices: Sequence[Device], visible: str | None, order: str | None = None
) -> VisibleDevices:
    """What CUDA shows of `devices`, given CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

    `order` is FASTEST_FIRST where it is not given, as in CUDA. A lost device is not counted.
    """
    there = [device for device in devices if device.family == "cuda" and not device.lost]
    numbered = _numbered(there, order)
    if visible is None:
        return VisibleDevices(_one_mig(numbered), _certain(there, order))
    if visible.startswith(("GPU-", "MIG-", "SIM-")):
        chosen, stopped_at = _by_uuid(visible, numbered)
        return VisibleDevices(_one_mig(chosen), True, stopped_at)
    chosen, stopped_at = _by_number(visible, numbered)
    return VisibleDevices(_one_mig(chosen), not chosen or _certain(there, order), stopped_at)


def _numbered(devices: Sequence[Device], order: str | None) -> list[Device]:
    """CUDA's own numbering. FASTEST_FIRST is guessed as the highest product of cores and maximum
    clock first, then the newest architecture, then PCI order; a device that does not tell its
    speed comes last.
    """
    in_pci_order = sorted(devices, key=lambda device: device.index)
    if order == PCI_BUS_ID:
        return in_pci_order
    return sorted(in_pci_order, key=_speed, reverse=True)


def _speed(device: Device) -> tuple[int, tuple[int, int]]:
    rate = (device.cores or 0) * (device.max_sm_clock_mhz or 0)
    return rate, device.compute_capability or (0, 0)


def _certain(devices: Sequence[Device], order: str | None) -> bool:
    """Whether the numbering is known: in PCI order, and among devices of one model."""
    return order == PCI_BUS_ID or len({device.name for device in devices}) <= 1


def _by_number(visible: str, numbered: Sequence[Device]) -> tuple[list[Device], str | None]:
    entries = visible.split(",")
    numbers: list[int] = []
    for entry in entries:
        match = re.match(r"\+?(\d+)", entry.strip(), re.ASCII)
        if match is None:
            break
        number = int(match[1])
        if number in numbers:
            return [], entry
        numbers.append(number)
    chosen: list[Device] = []
    for number in numbers:
        if number >= len(numbered):
            break
        chosen.append(numbered[number])
    stopped = len(chosen) < len(entries) and visible.strip() != ""
    return chosen, entries[len(chosen)] if stopped else None


def _by_uuid(visible: str, numbered: Sequence[Device]) -> tuple[list[Device], str | None]:
    prefix = visible[:4]
    entries = visible.split(",")
    named = list(takewhile(lambda entry: entry.startswith(prefix), entries))
    units = [unit for device in numbered for unit in (device, *device.mig_instances)]
    chosen: list[Device] = []
    for place, entry in enumerate(named):
        if entry in named[:place]:
            return [], entry
    for entry in named:
        found = [unit for unit in units if _names(entry, prefix, unit)]
        if len(found) != 1:
            return chosen, entry
        if found[0] in chosen:
            return [], entry
        chosen.append(found[0])
    return chosen, entries[len(named)] if len(named) < len(entries) else None


def _names(entry: str, prefix: str, unit: Device) -> bool:
    """Whether an entry is the beginning of the unit's UUID, or its older MIG name
    "MIG-<parent UUID>/<GPU instance>/<compute instance>".
    """
    if unit.mig_ids is not None and entry == (
        f"MIG-{unit.mig_parent_uuid}/{unit.mig_ids[0]}/{unit.mig_ids[1]}"
    ):
        return True
    return unit.uuid.startswith(prefix) and unit.uuid.startswith(entry)


def _one_mig(chosen: Sequence[Device]) -> tuple[Device, ...]:
    """CUDA shows one MIG instance and beside it nothing else; a device that is split but has no
    instance is not shown.
    """
    for device in chosen:
        if device.mig_parent_uuid is not None:
            return (device,)
        if device.mig_enabled and device.mig_instances:
            return (device.mig_instances[0],)
    return tuple(device for device in chosen if not device.mig_enabled)
