"""Why each training waits, and when it may start. Pure functions over what the queue sees.

The queue is played forward in its order: each training in turn gets the devices with which it can
start earliest, and gives them back after its predicted time. So a time told here holds if the
predictions do and nobody goes ahead; small trainings that fill gaps start earlier. Where a
prediction is missing the time is unknown, and the reason says whose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from drumline.jobs.queue import Held, Host, Rules, Slot, Waiting, decide, hold, place, predicted

_NAMED = 3

Code = Literal["next", "devices", "held_back", "behind", "draining", "impossible", "no_host"]


@dataclass(frozen=True)
class Wait:
    """Why a training waits.

    Attributes:
        position: Its place in the queue, from 1.
        code: "next" (starts at its host's next look), "devices" (too few are free), "held_back"
            (enough are free, but kept for one before it), "behind" (those before it come first),
            "draining" (its last attempt still holds devices),
            "impossible" (no host can ever give what it asks for), "no_host" (none is there, or
            not the one it asks for).
        reason: The same in words, with numbers and names.
        may_start_ms: When it may start, as predicted; None where that is not known.
        unknown: Why not, in words; empty where it is known.
        host: Where it may start.
    """

    position: int
    code: Code
    reason: str
    may_start_ms: int | None
    unknown: str
    host: str | None


def explain(
    hosts: Sequence[Host], ordered: Sequence[Waiting], now_ms: int, rules: Rules
) -> dict[str, Wait]:
    """Why each training waits, by id.

    Args:
        hosts: All hosts that are there.
        ordered: All that wait, from `queue.in_order`.
        now_ms: The time.
        rules: As for `queue.decide`.
    """
    decisions = {host.id: decide(host, ordered, now_ms, rules) for host in hosts}
    next_up = {d.start.id: host for host, d in decisions.items() if d.start is not None}
    held = [d.held for d in decisions.values() if d.held is not None and d.held.firm]
    present = {host.id: host for host in hosts}
    future = dict(present)
    waits: dict[str, Wait] = {}
    for position, job in enumerate(ordered, 1):
        able = [host for host in future.values() if job.host in (None, host.id)]
        at_once = [host.id for host in able if place(host, job, host.free) is not None]
        found = [(host, h) for host in able if (h := hold(host, job, now_ms, rules))]
        if job.id in next_up:
            wait = Wait(position, "next", "can start now", now_ms, "", next_up[job.id])
        elif at_once:
            wait = Wait(position, "behind", _ahead(position), now_ms, "", at_once[0])
        elif found:
            then, best = min(found, key=lambda pair: _soonest(pair[1], pair[0]))
            wait = _waits(position, job, present[then.id], then, best, held)
        else:
            wait = _never(position, job, able, hosts)
        waits[job.id] = wait
        if found:
            host, best = _where(found, wait.host)
            future[host.id] = _given(host, best, job)
    return waits


def _where(found: Sequence[tuple[Host, Held]], host_id: str | None) -> tuple[Host, Held]:
    return next((pair for pair in found if pair[0].id == host_id), found[0])


def _soonest(held: Held, host: Host) -> tuple[bool, int, int, str]:
    """Known times first; where none is known, the host that lacks the fewest devices."""
    free = set(host.free)
    missing = sum(uuid not in free for uuid in held.devices)
    return (held.start_ms is None, held.start_ms or 0, missing, host.id)


def _given(host: Host, held: Held, job: Waiting) -> Host:
    """The host after the training has been given these devices."""
    known = held.start_ms is not None and job.expected_ms is not None
    until = (held.start_ms or 0) + (job.expected_ms or 0) if known else None
    slots = tuple(
        Slot(slot.uuid, "leased", job.id, until) if slot.uuid in held.devices else slot
        for slot in host.slots
    )
    return replace(host, slots=slots)


def _waits(
    position: int,
    job: Waiting,
    now_there: Host,
    then: Host,
    best: Held,
    held: Sequence[Held],
) -> Wait:
    free = len(now_there.free)
    need = len(best.devices)
    code: Code
    if place(now_there, job, now_there.free) is None:
        code, reason = "devices", _too_few(now_there, best.devices, free, need)
    elif kept := [h for h in held if h.training != job.id and set(h.devices) & set(now_there.free)]:
        code = "held_back"
        reason = f"{_devices(free)} free on {now_there.id}, kept for training {kept[0].training}"
    else:
        code, reason = "behind", _ahead(position)
    unknown = "" if best.start_ms is not None else _unknown(then, best)
    return Wait(position, code, reason, best.start_ms, unknown, now_there.id)


def _too_few(host: Host, devices: Sequence[str], free: int, need: int) -> str:
    lacking = [slot for slot in host.slots if slot.uuid in devices and slot.state != "free"]
    holders = sorted({slot.holder for slot in lacking if slot.holder})
    foreign = sorted({slot.reason for slot in lacking if slot.state == "busy"})
    told = []
    if holders:
        more = f" and {len(holders) - _NAMED} more" if len(holders) > _NAMED else ""
        told.append(f"held by training {', '.join(holders[:_NAMED])}{more}")
    told += foreign[:1]
    others = f"; others are {' or '.join(told)}" if told else ""
    return f"needs {_devices(need)}, and {free} of {len(host.slots)} on {host.id} are free{others}"


def _ahead(position: int) -> str:
    before = position - 1
    return f"comes after {before} other training{'' if before == 1 else 's'}"


def _unknown(host: Host, best: Held) -> str:
    without = [
        slot.holder or "a process outside the queue"
        for slot in host.slots
        if slot.uuid in best.devices and predicted(slot, -1) is None and slot.state != "free"
    ]
    if without:
        who = without[0] if " " in without[0] else f"training {without[0]}"
        return f"nobody has predicted how long {who} will run"
    return "a training runs longer than was predicted"


def _never(position: int, job: Waiting, able: Sequence[Host], hosts: Sequence[Host]) -> Wait:
    if not able:
        reason = (
            "no host of the service is there"
            if not hosts
            else f"host {job.host} is not there; there are {', '.join(h.id for h in hosts)}"
        )
        return Wait(position, "no_host", reason, None, "no host is there", None)
    most = max(len(host.ever) for host in able)
    if job.gpus == 0 or (job.gpus == "auto" and most == 0):
        reason = "as many trainings without devices run as a host takes at a time"
        return Wait(position, "devices", reason, None, "nobody predicts these", None)
    asked = f"devices {', '.join(job.gpu_ids)}" if job.gpu_ids else _asked(job)
    out = [
        f"{slot.uuid} is {slot.reason}"
        for host in able
        for slot in host.slots
        if slot.uuid in job.gpu_ids and slot.state in ("out", "reserved")
    ]
    why = "; ".join(out) or f"the most that one has in order is {_devices(most)}"
    reason = f"no host can give it {asked}; {why}"
    return Wait(position, "impossible", reason, None, "no host can run it", None)


def _asked(job: Waiting) -> str:
    count = _devices(job.gpus) if isinstance(job.gpus, int) else f"{job.gpus} devices"
    if job.memory_bytes is None:
        return count
    return f"{count} with {job.memory_bytes / 2**30:.1f} GiB free on each"


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"
