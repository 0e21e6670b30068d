"""Why devices are not given, and, where too few are left, the nearest that would work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from drumline.errors import DeviceError
from drumline.hardware import Device, Machine
from drumline.planning.availability import (
    Need,
    gib,
    label,
    memory_to_give,
    units,
    whole,
    why_not,
)

_NAMED = 8


def refusal(
    machine: Machine, count: int | Literal["auto"], free: Sequence[Device], need: Need
) -> DeviceError:
    """The error for `count` devices where only `free` can be given."""
    there = len(machine.usable)
    if there == 0:
        asked = 1 if count == "auto" else count
        problems = " ".join(machine.problems)
        return DeviceError(
            f"{asked} GPUs were asked for, and this machine has none. {problems}".rstrip(),
            remedy=f"Use devices=cpu:{asked} for CPU processes over gloo.",
            asked=asked,
            there=0,
        )
    together = _most_together(free)
    each = f" {told}." if (told := left_out(machine, need)) else ""
    alone = f" Only {together} of them can be used together." if together < len(free) else ""
    return DeviceError(
        _headline(count, there, there - len(free), need) + each + alone,
        remedy=_nearest(machine, together, need),
        asked=count,
        there=there,
        free=len(free),
    )


def left_out(machine: Machine, need: Need) -> str:
    """What is wrong with each device that cannot be given, for so many as a reader takes in; empty
    where all can.
    """
    reasons = [f"{label(unit)}: {why}" for unit in units(machine) if (why := why_not(unit, need))]
    more = f"; and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
    return f"{'; '.join(reasons[:_NAMED])}{more}"


def _headline(count: int | Literal["auto"], there: int, refused: int, need: Need) -> str:
    if count == "auto":
        enough = "" if need.memory_bytes is None else " and large enough"
        return f"None of the {there} GPUs is free{enough}."
    fitting = "" if need.memory_bytes is None else " or too small"
    held = f", {refused} of them not free{fitting}" if refused else ""
    return f"{count} GPUs were asked for, and this machine has {there}{held}."


def _nearest(machine: Machine, together: int, need: Need) -> str:
    if together:
        return f"Use devices={together} or fewer."
    any_size = replace(need, memory_bytes=None)
    free = [unit for unit in machine.usable if why_not(unit, any_size) is None]
    if free:
        most = max(memory_to_give(unit) or 0 for unit in free)
        return f"A smaller micro_batch may fit: the most that one has free is {gib(most)}."
    return "Wait until one is free, name devices yourself, or use devices=cpu."


def _most_together(free: Sequence[Device]) -> int:
    """One family can work together, and no MIG instances."""
    families = Counter((device.family, device.simulated) for device in whole(free))
    return max(families.values(), default=min(1, len(free)))
