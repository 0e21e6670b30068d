"""Devices that a user names: by index, by UUID, or by the beginning of one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from drumline.errors import DeviceError
from drumline.hardware.device import Device

if TYPE_CHECKING:
    from drumline.hardware.machine import Machine


def resolve_devices(reference: str, machine: Machine) -> list[Device]:
    """The devices of a list such as "0,2" or "GPU-8932f937,3", in the order given.

    An entry of digits is an index in PCI-bus order; any other is a UUID, or so much of its
    beginning that it fits one device only, with or without "GPU-" and in any case. MIG instances
    are named by their UUID.

    Raises:
        DeviceError: If an entry fits no device or several, if two entries are the same device, or
            if a device is lost or is split by MIG.
    """
    entries = [entry.strip() for entry in reference.split(",")]
    if not all(entries):
        raise DeviceError(
            f"The device list {reference!r} has an empty entry.",
            remedy="Give indices or UUIDs with commas, for example 0,2.",
            reference=reference,
        )
    chosen: dict[str, str] = {}
    devices = []
    for entry in entries:
        device = find_device(entry, machine)
        _check_usable(entry, device)
        if device.uuid in chosen:
            raise DeviceError(
                f"The device list {reference!r} names {_label(device)} twice: as "
                f"{chosen[device.uuid]} and as {entry}.",
                remedy="Name each device once.",
                reference=reference,
                uuid=device.uuid,
            )
        chosen[device.uuid] = entry
        devices.append(device)
    return devices


def find_device(reference: str, machine: Machine) -> Device:
    """The one device or MIG instance of a reference, be it usable or not.

    Raises:
        DeviceError: If there is none, or more than one.
    """
    if not machine.devices:
        because = " ".join(machine.problems)
        raise DeviceError(
            f"There is no GPU on {machine.host.hostname}, so {reference!r} names none. {because}",
            remedy="Use devices=cpu to train on the CPU.",
            reference=reference,
        )
    text = reference.strip()
    if text.isascii() and text.isdigit():
        return _by_index(int(text), machine)
    return _by_uuid(text, machine)


def _by_index(index: int, machine: Machine) -> Device:
    for device in machine.devices:
        if device.index == index:
            return device
    indices = [device.index for device in machine.devices]
    raise DeviceError(
        f"There is no GPU {index} on {machine.host.hostname}; it has {_listed(indices)}.",
        remedy=f"The nearest is {min(indices, key=lambda there: abs(there - index))}.",
        index=index,
        indices=indices,
    )


def _by_uuid(text: str, machine: Machine) -> Device:
    units = [unit for device in machine.devices for unit in (device, *device.mig_instances)]
    wanted = text.lower()
    exact = [unit for unit in units if unit.uuid.lower() == wanted]
    found = exact or [unit for unit in units if wanted and _begins(unit.uuid.lower(), wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise DeviceError(
            f"{text!r} is the beginning of several UUIDs: "
            f"{' and '.join(_label(device) for device in found)}.",
            remedy=f"Give more of the UUID: {' or '.join(_telling_apart(found))}.",
            reference=text,
            uuids=[device.uuid for device in found],
        )
    uuids = {unit.uuid.lower(): unit.uuid for unit in units}
    near = get_close_matches(wanted, list(uuids), n=1, cutoff=0.6)
    meant = f"Did you mean {uuids[near[0]]}? " if near else ""
    raise DeviceError(
        f"No device has a UUID that begins with {text!r}.",
        remedy=f"{meant}There are: {', '.join(_label(unit) for unit in units)}.",
        reference=text,
        uuids=list(uuids.values()),
    )


def _telling_apart(devices: list[Device]) -> list[str]:
    """The shortest beginnings of the UUIDs that fit one of the devices each."""
    uuids = [device.uuid for device in devices]
    longest = max(map(len, uuids))
    lengths = (n for n in range(1, longest) if len({uuid[:n] for uuid in uuids}) == len(uuids))
    length = next(lengths, longest)
    return [uuid[:length] for uuid in uuids]


def _begins(uuid: str, wanted: str) -> bool:
    return uuid.startswith(wanted) or uuid.partition("-")[2].startswith(wanted)


def _check_usable(entry: str, device: Device) -> None:
    if device.lost:
        raise DeviceError(
            f"{_label(device)} is lost: {device.problem}",
            remedy="Choose another device, or restart the machine to bring it back.",
            reference=entry,
            uuid=device.uuid,
        )
    if device.mig_enabled:
        instances = ", ".join(instance.uuid for instance in device.mig_instances) or "none yet"
        raise DeviceError(
            f"{_label(device)} is split by MIG and cannot be used whole.",
            remedy=f"Name one of its instances: {instances}.",
            reference=entry,
            uuid=device.uuid,
        )


def _label(device: Device) -> str:
    if device.mig_parent_uuid is not None:
        return f"MIG instance {device.uuid}"
    return f"GPU {device.index} ({device.uuid})"


def _listed(indices: list[int]) -> str:
    if len(indices) == 1:
        return f"GPU {indices[0]} only"
    return f"GPUs {', '.join(str(index) for index in indices)}"
