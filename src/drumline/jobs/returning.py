"""Whether devices are free of what an attempt's processes held on them."""

from __future__ import annotations

from collections.abc import Collection

from drumline.hardware import Machine
from drumline.planning.availability import units, why_in_use


def memory_has_fallen(simulate: str, gpu_ids: Collection[str]) -> bool:
    """Whether nobody holds memory on these devices any more. One that is lost or does not tell
    holds up nobody; simulated ones are always free.

    Args:
        simulate: The setting of simulated devices, empty for real ones.
        gpu_ids: Their UUIDs.
    """
    if simulate or not gpu_ids:
        return True
    there = [unit for unit in units(Machine.probe()) if unit.uuid in gpu_ids]
    return all(unit.lost or why_in_use(unit) is None for unit in there)
