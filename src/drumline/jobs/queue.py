"""Who is next: the order of the queue, and which training gets which devices. Pure functions.

**Order**: higher priority first. Within a priority first those that have waited longer than
`overdue_ms`, the longest first; then those whose owner has used the fewest device-seconds lately;
then those that have waited longest.

**Reservation and backfill** (D. Lifka, The ANL/IBM SP scheduling system, 1995, known as EASY):
the first training in order that cannot start has devices held back for it: those that are free
first, as they come. Others may have a held device only if they are predicted to give it back
before it is needed. Where nobody can predict when the devices come, they are held back once the
training has waited `hold_back_ms`; until then anybody may have them. Nor are they held back while
one of those needed is in use by a process outside the queue, which may never end.

So a training of the highest priority always starts, once what runs has ended: it becomes overdue,
only trainings overdue before it come first, and each device that comes free is kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Fits = Callable[["Waiting", Collection[str]], tuple[str, ...] | None]
"""Devices for a training among those of a host that it may have; empty where it needs none, None
where they do not suffice."""


@dataclass(frozen=True)
class Rules:
    """Times that bound waiting.

    Attributes:
        hold_back_ms: After this, devices are held back for the first training although nobody can
            predict when it can start.
        overdue_ms: After this, age goes before fair share.
    """

    hold_back_ms: int = 60_000
    overdue_ms: int = 6 * 3_600_000


@dataclass(frozen=True)
class Waiting:
    """A training that waits. `gpus` is the number of `gpu_ids` where there are any."""

    id: str
    owner: str
    priority: int
    queued_ms: int
    gpus: int | Literal["auto", "all"]
    gpu_ids: tuple[str, ...] = ()
    memory_bytes: int | None = None
    host: str | None = None
    expected_ms: int | None = None


@dataclass(frozen=True)
class Slot:
    """A device of a host.

    `state` is "free", "leased" (to `holder`), "busy" (processes of somebody else), "reserved" (by
    an operator) or "out" (lost or unwell). `free_at_ms` is when a leased device is predicted to be
    given back; None where nobody can say.
    """

    uuid: str
    state: Literal["free", "leased", "busy", "reserved", "out"] = "free"
    holder: str | None = None
    free_at_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Host:
    """A host with its devices, and `fits`, which knows what may work together."""

    id: str
    slots: tuple[Slot, ...]
    fits: Fits = field(compare=False)
    reserved_elsewhere: frozenset[str] = frozenset()  # trainings that wait for another host

    @property
    def free(self) -> list[str]:
        """UUIDs of the devices that can be given now."""
        return [slot.uuid for slot in self.slots if slot.state == "free"]

    @property
    def ever(self) -> list[str]:
        """UUIDs of the devices that can be given some day."""
        return [slot.uuid for slot in self.slots if slot.state not in ("out", "reserved")]


@dataclass(frozen=True)
class Held:
    """Devices held back for a training.

    `start_ms` is when all of them are predicted to be free, None where nobody can say; while it is
    None and the hold is not `firm`, others may still have them.
    """

    training: str
    devices: tuple[str, ...]
    start_ms: int | None
    firm: bool

    def open_to(self, job: Waiting, now_ms: int) -> bool:
        """Whether another training may have the held devices for its predicted time."""
        if not self.firm:
            return True
        if self.start_ms is None or job.expected_ms is None:
            return False
        return now_ms + job.expected_ms <= self.start_ms


@dataclass(frozen=True)
class Decision:
    """Which training starts on a host now, if any, on which devices; and what is held back."""

    start: Waiting | None
    devices: tuple[str, ...]
    held: Held | None


def in_order(
    waiting: Iterable[Waiting],
    usage_ms: Mapping[str, int],
    now_ms: int,
    rules: Rules,
) -> list[Waiting]:
    """The trainings, the next one first.

    Args:
        waiting: In any order.
        usage_ms: Device-milliseconds that each owner has used lately; absent means none.
        now_ms: The time.
        rules: When age goes before fair share.
    """

    def place(job: Waiting) -> tuple[int, int, int, int, str]:
        overdue = now_ms - job.queued_ms >= rules.overdue_ms
        used = 0 if overdue else usage_ms.get(job.owner, 0)
        return (-job.priority, 0 if overdue else 1, used, job.queued_ms, job.id)

    return sorted(waiting, key=place)


def decide(host: Host, ordered: Sequence[Waiting], now_ms: int, rules: Rules) -> Decision:
    """What happens on a host now: the first training in order that may start there.

    Args:
        host: The host and its devices.
        ordered: All that wait, from `in_order`.
        now_ms: The time.
        rules: When devices are held back.
    """
    held: Held | None = None
    free = host.free
    for job in ordered:
        if job.host not in (None, host.id):
            continue
        allowed = free if held is None or held.open_to(job, now_ms) else without(free, held.devices)
        devices = place(host, job, allowed)
        if devices is not None:
            return Decision(job, devices, held)
        if held is None and job.id not in host.reserved_elsewhere:
            held = hold(host, job, now_ms, rules)
    return Decision(None, (), held)


def place(host: Host, job: Waiting, allowed: Sequence[str]) -> tuple[str, ...] | None:
    """Devices for the training among those allowed, or None."""
    least = job.gpus if isinstance(job.gpus, int) else min(1, len(host.slots))
    enough = len(job.gpu_ids) or least
    return host.fits(job, allowed) if len(allowed) >= enough else None


def hold(host: Host, job: Waiting, now_ms: int, rules: Rules) -> Held | None:
    """What to hold back for a training that cannot start; None where this host never suits it.

    The devices with which it can start earliest: free ones first, then in the order in which they
    are predicted to come, then the others, those that processes outside the queue use last.
    """
    ever = set(host.ever)
    coming = sorted(
        (slot for slot in host.slots if slot.uuid in ever),
        key=lambda slot: _when(slot, now_ms),
    )
    for count in range(1, len(coming) + 1):
        devices = place(host, job, [slot.uuid for slot in coming[:count]])
        if devices is not None:
            start = _start(coming, devices, now_ms)
            long = now_ms - job.queued_ms >= rules.hold_back_ms
            foreign = any(slot.state == "busy" for slot in coming if slot.uuid in devices)
            return Held(job.id, devices, start, firm=not foreign and (start is not None or long))
    return None


def without(devices: Iterable[str], taken: Collection[str]) -> list[str]:
    """The devices that are not among those taken, in their order."""
    return [uuid for uuid in devices if uuid not in taken]


def _when(slot: Slot, now_ms: int) -> tuple[int, int]:
    if slot.state == "free":
        return (0, 0)
    if slot.state == "busy":
        return (3, 0)
    known = predicted(slot, now_ms)
    return (2, 0) if known is None else (1, known)


def predicted(slot: Slot, now_ms: int) -> int | None:
    """When the device is free: now, or as predicted; None where nobody can say, or the time
    predicted is over.
    """
    if slot.state == "free":
        return now_ms
    if slot.free_at_ms is None or slot.free_at_ms <= now_ms:
        return None
    return slot.free_at_ms


def _start(slots: Iterable[Slot], devices: Collection[str], now_ms: int) -> int | None:
    times = [predicted(slot, now_ms) for slot in slots if slot.uuid in devices]
    known = [time for time in times if time is not None]
    return max(known, default=now_ms) if len(known) == len(times) else None
