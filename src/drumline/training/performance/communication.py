"""NCCL's settings for the sums of gradients, tried by the links between the devices.

NCCL reads its environment once, but a process group may have options of its own. Each setting is a
group in which gradients are summed from then on; all other collectives stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from drumline.distributed import World
from drumline.hardware import Machine
from drumline.training.performance.switch import Subject, Switch


@dataclass(frozen=True)
class NcclSetting:
    """Options of a process group.

    Attributes:
        name: For the report.
        why: What it is meant to do.
        min_ctas, max_ctas: Bounds on the thread blocks that a collective takes from computing.
    """

    name: str
    why: str
    min_ctas: int | None = None
    max_ctas: int | None = None


URGENT = NcclSetting("nccl_priority", "sums go before the backward that runs beside them")
BY_TOPOLOGY = {
    "nvlink": (URGENT, NcclSetting("nccl_16_ctas", "leaves more to computing", max_ctas=16)),
    "pcie": (URGENT, NcclSetting("nccl_4_ctas", "few blocks fill PCIe", max_ctas=4)),
    "several machines": (
        URGENT,
        NcclSetting("nccl_more_ctas", "more channels to the network", min_ctas=16),
    ),
}


class NcclGroup(Switch):
    """Gradients are summed in a group with other options, on a stream of high priority.

    Args:
        setting: The options.
        world: Whose ranks it has.
    """

    def __init__(self, setting: NcclSetting, world: World) -> None:
        self.name, self._setting, self._world = setting.name, setting, world
        self._group: dist.ProcessGroup | None = None
        self._before: list[dist.ProcessGroup | None] = []

    def why_not(self, subject: Subject) -> str | None:
        """NCCL, several ranks, and a mode that lets the group be chosen."""
        if self._world.backend != "nccl" or self._world.size == 1:
            return "gradients are not summed through NCCL"
        if subject.gradient_group is None:
            return "this mode sums gradients in a group of its own"
        return None

    def apply(self, subject: Subject) -> None:
        """Sum there; the group is made by all ranks the first time."""
        assert subject.gradient_group is not None
        if self._group is None:
            self._group = self._made()
        self._before.append(subject.gradient_group.group)
        subject.gradient_group.group = self._group

    def undo(self, subject: Subject) -> None:
        """Sum where it was done before."""
        if self._before and subject.gradient_group is not None:
            subject.gradient_group.group = self._before.pop()

    def _made(self) -> dist.ProcessGroup:
        options: Any = dist.ProcessGroupNCCL.Options()
        options.is_high_priority_stream = True
        for bound in ("min_ctas", "max_ctas"):
            value = getattr(self._setting, bound)
            if value is not None:
                setattr(options.config, bound, value)
        timeout = timedelta(seconds=self._world.config.timeout_s)
        made: dist.ProcessGroup = dist.new_group(
            backend="nccl", timeout=timeout, pg_options=options
        )
        return made


def nccl_switches(world: World) -> list[NcclGroup]:
    """What to try on these ranks' links; empty where NCCL is not used. All ranks get the same."""
    if world.backend != "nccl" or world.size == 1:
        return []
    return [NcclGroup(setting, world) for setting in BY_TOPOLOGY[_topology(world)]]


def _topology(world: World) -> str:
    """How the devices of all ranks reach each other: the slowest kind of link counts."""
    uuids = world.control.gather(_uuid(world.device))
    if world.environment.local_world_size < world.size:
        return "several machines"
    found = topology(Machine.probe(), uuids) if world.is_main else None
    return world.control.broadcast(found) or "pcie"


def topology(machine: Machine, uuids: list[str]) -> str:
    """`nvlink` if every pair of these devices of a machine has it, else `pcie`."""
    pairs = [(a, b) for place, a in enumerate(uuids) for b in uuids[place + 1 :]]
    links = [machine.link(a, b) for a, b in pairs]
    return "nvlink" if all(link is not None and link.kind == "nvlink" for link in links) else "pcie"


def _uuid(device: torch.device) -> str:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
