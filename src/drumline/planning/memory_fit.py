"""Which devices have the memory that a run needs, and what would work where none has.

Who makes the estimates is `bench.memory`'s matter; here they are asked for by number of ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from drumline.config import Mode, RunConfig
from drumline.errors import BadInput, DeviceError
from drumline.hardware import Device, Machine
from drumline.planning.availability import Need, gib, label, memory_to_give, units, why_not
from drumline.planning.cost_model import Candidate
from drumline.planning.devices import PlannedDevice, choose_devices
from drumline.planning.memory import Fit, MemoryEstimate, fits

Capability = tuple[int, int] | None


class NotKnown(Exception):
    """An answer that would have to be made first, where none is made."""


class MemoryQuestions(Protocol):
    """Estimates of one config. Each raises NotKnown where answers are not made on demand."""

    def need(self, world_size: int, capability: Capability) -> MemoryEstimate:
        """What a rank needs on such a device."""

    def largest(
        self, world_size: int, capability: Capability, capacity: int
    ) -> MemoryEstimate | None:
        """The estimate of the largest micro-batch that fits; None if none does."""

    def smallest(self, world_size: int, capability: Capability) -> MemoryEstimate:
        """The estimate of the smallest micro-batch."""

    def cut(self) -> MemoryQuestions:
        """The same questions about mode sharded."""


@dataclass(frozen=True)
class Needed:
    """What a run asks of its devices.

    Attributes:
        each: Bytes on every device; None on the CPU, where nothing is refused.
        questions: Who answered.
        too_large: Where replicas fit no devices and the run is cut among them: why.
    """

    each: int | None
    questions: MemoryQuestions
    too_large: DeviceError | None = None


@dataclass(frozen=True)
class KindMemory:
    """The need beside what devices of one kind have.

    Attributes:
        name: Of the kind.
        chosen: How many of them the plan takes.
        capacity: The least that is free on one of them (on a CPU process: its part of the host's);
            None where that is not reported.
        needed: The estimate.
        largest: Of the largest micro-batch that fits; None if none does, or it is not known.
    """

    name: str
    chosen: int
    capacity: int | None
    needed: MemoryEstimate
    largest: MemoryEstimate | None

    @property
    def fit(self) -> Fit | None:
        """Whether it fits; None where it is not known what is free."""
        return None if self.capacity is None else fits(self.needed, self.capacity)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for plan.json."""
        fit = self.fit
        return {
            "device": self.name,
            "chosen": self.chosen,
            "capacity": self.capacity,
            "fits": None if fit is None else fit.fits,
            "left": None if fit is None else fit.left,
            "largest_micro_batch": self.largest and self.largest.micro_batch,
            "needed": self.needed.as_dict(),
        }


def needed_memory(
    config: RunConfig,
    machine: Machine,
    occupied: Collection[str],
    at_most: int,
    memory: MemoryQuestions,
) -> Needed:
    """What is asked of each device: by replicas, or in mode auto, where not even their smallest
    micro-batch fits, by mode sharded.

    Raises:
        DeviceError: If no devices have it, with what would fit.
    """
    try:
        return Needed(needed_bytes(config, machine, occupied, at_most, memory), memory)
    except DeviceError as error:
        several = len(choose_devices(config.devices, machine, occupied, at_most)[0]) > 1
        can_cut = config.distributed.mode is Mode.AUTO and several
        if not can_cut or error.values.get("micro_batch"):
            raise
        try:
            cut = memory.cut()
        except BadInput:  # the config's other keys do not go with that mode
            raise error from None
        try:
            each = needed_bytes(config, machine, occupied, at_most, cut)
        except DeviceError as cut_error:
            fitting = cut_error.values.get("micro_batch")
            if fitting:
                error.remedy = f"distributed.mode=sharded with micro_batch={fitting} fits."
            raise error from None
        return Needed(each, cut, error)


def needed_bytes(
    config: RunConfig,
    machine: Machine,
    occupied: Collection[str],
    at_most: int,
    memory: MemoryQuestions,
) -> int | None:
    """What `choose_devices` must ask of each device; None on the CPU, where nothing is refused.

    Raises:
        DeviceError: If no devices have it, with what would fit.
    """
    devices, _ = choose_devices(config.devices, machine, occupied, at_most)
    while devices[0].kind != "cpu":
        size = len(devices)
        need = max(memory.need(size, each).total for each in _capabilities(machine))
        try:
            found, _ = choose_devices(config.devices, machine, occupied, at_most, need)
        except DeviceError as error:
            raise _too_large(machine, occupied, devices, memory, error) from error
        if len(found) >= size:
            return need
        devices = found  # fewer, so each holds more of the batch
    return None


def within(
    candidate: Candidate,
    machine: Machine,
    devices: Sequence[PlannedDevice],
    memory: MemoryQuestions,
) -> Candidate:
    """The candidate, which cannot be selected where its memory does not suffice."""
    if not candidate.selectable or devices[0].kind == "cpu":  # the host's memory is no bound
        return candidate
    short = [
        fit.left
        for kind in kinds(machine, devices[: candidate.devices], memory, with_largest=False)
        if kind.chosen and (fit := kind.fit) is not None and not fit.fits
    ]
    if not short:
        return candidate
    note = f"does not fit: short by {gib(-min(short))}"
    return replace(candidate, selectable=False, note=note)


def kinds(
    machine: Machine,
    devices: Sequence[PlannedDevice],
    memory: MemoryQuestions,
    *,
    with_largest: bool = True,
) -> tuple[KindMemory, ...]:
    """The need on every kind of device that is there, for a run on `devices`."""
    size = len(devices)
    if devices[0].kind == "cpu":
        free = machine.host.memory_available_bytes
        capacity = None if free is None else free // size
        return (_kind(devices[0].name, size, (capacity, None), size, memory, with_largest),)
    chosen = {device.uuid for device in devices}
    groups: dict[tuple[Any, ...], list[Device]] = {}
    for unit in units(machine):
        if not unit.lost:
            key = (unit.name, unit.compute_capability, unit.memory_total_bytes)
            groups.setdefault(key, []).append(unit)
    found = []
    for group in groups.values():
        taken = [unit for unit in group if unit.uuid in chosen]
        free_on = [memory_to_give(unit) for unit in taken or group]
        reported = [free for free in free_on if free is not None]
        capacity = (min(reported) if taken else max(reported)) if reported else None
        what = (capacity, group[0].compute_capability)
        name = str(group[0].name or group[0].kind)
        found.append(_kind(name, len(taken), what, size, memory, with_largest))
    return tuple(sorted(found, key=lambda kind: -kind.chosen))


def _kind(
    name: str,
    chosen: int,
    what: tuple[int | None, Capability],
    size: int,
    memory: MemoryQuestions,
    with_largest: bool,
) -> KindMemory:
    capacity, capability = what
    needed = memory.need(size, capability)
    largest = None
    if with_largest and capacity is not None:
        with suppress(NotKnown):  # it is shown, and nothing depends on it
            largest = memory.largest(size, capability, capacity)
    return KindMemory(name, chosen, capacity, needed, largest)


def _capabilities(machine: Machine) -> set[Capability]:
    return {unit.compute_capability for unit in units(machine) if not unit.lost}


def _too_large(
    machine: Machine,
    occupied: Collection[str],
    devices: Sequence[PlannedDevice],
    memory: MemoryQuestions,
    error: DeviceError,
) -> DeviceError:
    """The error for a run that is too large for the devices it would get otherwise."""
    wanted = {device.uuid for device in devices}
    candidates = [unit for unit in units(machine) if unit.uuid in wanted]
    worst = min(candidates, key=lambda unit: memory_to_give(unit) or 0)
    free, size = memory_to_give(worst) or 0, len(devices)
    need = memory.need(size, worst.compute_capability)
    others = [
        unit
        for unit in units(machine)
        if unit.uuid not in wanted and why_not(unit, Need(need.total, occupied)) is None
    ]
    found = memory.largest(size, worst.compute_capability, free)
    least = found or memory.smallest(size, worst.compute_capability)
    tips = [_smaller(least, fitting=found is not None)]
    if others:
        tips.insert(0, f"{label(others[0])} has {gib(memory_to_give(others[0]) or 0)} free.")
    where = f"each of {size} devices" if size > 1 else "its device"
    return DeviceError(
        f"The run needs {gib(need.total)} on {where} with micro-batches of {need.micro_batch}, and "
        f"{label(worst)} has {gib(free)} free: short by {gib(need.total - free)}.",
        remedy=" ".join(tips),
        needed_bytes=need.total,
        free_bytes=free,
        micro_batch=found.micro_batch if found else None,
        because=error.message,
    )


def _smaller(least: MemoryEstimate, *, fitting: bool) -> str:
    """The nearest that would work on the same device."""
    if fitting:
        return f"micro_batch={least.micro_batch} fits and needs {gib(least.total)}."
    return (
        f"Even micro_batch={least.micro_batch} needs {gib(least.total)} there: use a smaller model "
        "(fewer latents, say) or a larger card."
    )
