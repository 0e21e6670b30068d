"""Which devices a run is best given, and what speaks against a selection. Pure functions.

Of the devices that are free (see `availability`) and large enough, in this order:

1. One model, unless no model has enough devices; then as few models as can be.
2. The smallest memory that suffices, so that large cards stay for large jobs. Where the need is
   not known, the largest memory.
3. The tightest links, and of equally tight ones those that break up least.
4. The lowest indices.

A run can have one MIG instance only, since CUDA shows a process no more than one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from drumline.errors import DeviceError
from drumline.hardware import Device, Machine
from drumline.planning.availability import (
    Need,
    gib,
    memory_in_words,
    memory_to_give,
    units,
    whole,
    why_not,
)
from drumline.planning.refusal import left_out, refusal
from drumline.planning.tightness import Tightness


@dataclass(frozen=True)
class Recommendation:
    """Devices in PCI order, and why these, in words."""

    devices: tuple[Device, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Whether one device of a selection can be used. `uuid` is what was asked for where no device
    is meant by it.
    """

    uuid: str
    ok: bool
    reason: str


def recommend(
    machine: Machine,
    count: int | Literal["auto"],
    memory_bytes: int | None = None,
    occupied: Collection[str] = (),
    reserved: Collection[str] = (),
    *,
    at_most: int | None = None,
) -> Recommendation:
    """The devices to use.

    Args:
        machine: What is there.
        count: How many; "auto" is all free devices of one model: where the need is known the
            model with most of them, else the one with the most memory together.
        memory_bytes: What the run needs on each device; None where it is not known.
        occupied: UUIDs that others hold; a mapping says in words who they are.
        reserved: UUIDs that are kept back for other use.
        at_most: Bounds "auto".

    Raises:
        DeviceError: If there are not as many, with what is wrong with each and what would work.
    """
    need = Need(memory_bytes, occupied, reserved)
    free = [unit for unit in units(machine) if why_not(unit, need) is None]
    tightness = Tightness(machine)
    if count == "auto":
        found = _most(free, need, tightness, at_most or len(free))
    elif count < 1:
        raise DeviceError(
            f"{count} devices were asked for.",
            remedy="For the device with index 0 write devices=0, .",
        )
    else:
        found = _of_count(free, count, need, tightness)
    if not found:
        raise refusal(machine, count, free, need)
    return _recommended(machine, found, free, need, tightness)


def validate(
    machine: Machine,
    selection: Sequence[str],
    memory_bytes: int | None = None,
    occupied: Collection[str] = (),
    reserved: Collection[str] = (),
) -> list[Verdict]:
    """A verdict on each device of a selection, in its order.

    Args:
        machine: What is there.
        selection: Indices, UUIDs or beginnings of UUIDs.
        memory_bytes: As for `recommend`, and so are the others.
        occupied: See there.
        reserved: See there.
    """
    need = Need(memory_bytes, occupied, reserved)
    verdicts: list[Verdict] = []
    seen: dict[str, str] = {}
    for reference in selection:
        try:
            device = machine.device(reference)
        except DeviceError as error:
            verdicts.append(Verdict(reference, False, str(error)))
            continue
        reason = why_not(device, need)
        if device.uuid in seen:
            reason = f"named twice, as {seen[device.uuid]} and as {reference}"
        elif reason is None and device.mig_parent_uuid and len(selection) > 1:
            reason = "a MIG instance can only be used alone"
        seen.setdefault(device.uuid, reference)
        told = reason or f"free: {memory_in_words(device)}"
        verdicts.append(Verdict(device.uuid, reason is None, told))
    return verdicts


def _most(free: list[Device], need: Need, tightness: Tightness, at_most: int) -> list[Device]:
    """What `auto` takes: of one model; empty where no device is free."""

    def weight(group: list[Device]) -> tuple[int, int, int]:
        many = min(len(group), at_most)
        together = many if need.memory_bytes is not None else many * _memory(group)
        return (together, _preference(group, need), -group[0].index)

    groups = _by_model(whole(free)) or [[unit] for unit in free]
    best = max(groups, key=weight, default=[])
    return tightness.tightest(best, min(len(best), at_most))


def _of_count(free: list[Device], count: int, need: Need, tightness: Tightness) -> list[Device]:
    """`count` devices of one family, empty where no family has as many."""
    pool = free if count == 1 else whole(free)
    families: dict[tuple[str, bool], list[Device]] = {}
    for device in pool:
        families.setdefault((device.family, device.simulated), []).append(device)
    sets = [
        _of_family(devices, count, need, tightness)
        for devices in families.values()
        if len(devices) >= count
    ]

    def order(chosen: list[Device]) -> tuple[int, int, int]:
        return (len(_by_model(chosen)), -_preference(chosen, need), chosen[0].index)

    return min(sets, key=order, default=[])


def _of_family(devices: list[Device], count: int, need: Need, tightness: Tightness) -> list[Device]:
    """From one model that has enough; else the largest groups whole, and the rest from one."""
    groups = _by_model(devices)
    chosen: list[Device] = []
    while len(chosen) < count:
        left = count - len(chosen)
        enough = [group for group in groups if len(group) >= left]
        group = max(
            enough or groups,
            key=lambda group: (
                0 if enough else len(group),
                _preference(group, need),
                -group[0].index,
            ),
        )
        chosen += tightness.tightest(group, min(left, len(group)), others=chosen)
        groups.remove(group)
    return sorted(chosen, key=lambda device: device.index)


def _by_model(devices: Sequence[Device]) -> list[list[Device]]:
    groups: dict[tuple[object, ...], list[Device]] = {}
    for device in devices:
        model = (device.kind, device.name, device.memory_total_bytes, device.mig_parent_uuid)
        groups.setdefault(model, []).append(device)
    return list(groups.values())


def _preference(group: Sequence[Device], need: Need) -> int:
    """Higher is preferred: little memory where that is known to suffice, else much. Devices that
    do not report their memory come last.
    """
    memory = _memory(group)
    if memory == 0:
        return -(2**62)
    return memory if need.memory_bytes is None else -memory


def _memory(group: Sequence[Device]) -> int:
    return min(device.memory_total_bytes or 0 for device in group)


def _recommended(
    machine: Machine,
    chosen: Sequence[Device],
    free: Sequence[Device],
    need: Need,
    tightness: Tightness,
) -> Recommendation:
    ordered = tuple(sorted(chosen, key=lambda device: device.index))
    models = Counter(str(device.name) for device in ordered)
    named = " and ".join(f"{many} × {name}" for name, many in models.items())
    there = len(machine.usable)
    reasons = [f"devices: {len(ordered)} of {there} GPUs, {len(free)} of which are free: {named}"]
    if told := left_out(machine, need):
        reasons.append(f"devices: left out: {told}")
    if need.memory_bytes is not None:
        least = min((memory_to_give(device) or 0) for device in ordered)
        known = f"{gib(least)} free" if least else "free memory is not reported"
        reasons.append(f"devices: {gib(need.memory_bytes)} needed on each, {known} on the fullest")
    joined = tightness.in_words(ordered)
    if joined:
        reasons.append(f"devices: joined by {joined}")
    others = len(free) - len(ordered)
    left_models = {device.name for device in free if device not in ordered} - set(models)
    if others and left_models:
        reasons.append(
            f"devices: left for others: {', '.join(sorted(str(name) for name in left_models))}; "
            "name devices to mix models"
        )
    return Recommendation(ordered, tuple(reasons))
