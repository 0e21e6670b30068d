"""The two kinds of check, and what they are given.

A `HostCheck` looks at the machine from the launching process. A `RankCheck` measures in every rank
and judges in the launching process, so that judging is a pure function of what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.bench.checks.finding import Finding
from drumline.hardware import Machine
from drumline.planning import PlannedDevice

if TYPE_CHECKING:
    import torch

    from drumline.config import RunConfig
    from drumline.distributed import World


@dataclass(frozen=True)
class TorchFacts:
    """What torch was built for and whether it reaches the GPUs. `problem` is torch's own warning.

    `cuda` and `hip` are the versions it was built for, None where it was not; `architectures` are
    those it has code for, as in ("sm_90", "compute_90").
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    available: bool = False
    architectures: tuple[str, ...] = ()
    problem: str = ""


UNREAD = TorchFacts("", None, None, available=False)
"""Nobody has asked torch yet."""


@dataclass(frozen=True)
class CheckContext:
    """What checks look at.

    Attributes:
        machine: What is there, as CUDA_VISIBLE_DEVICES leaves it.
        torch: What torch was built for.
        devices: What is measured, one rank each; CPU processes on a machine without GPUs.
        left_out: Devices that are not measured, by UUID, and why.
        occupied: Devices that somebody holds, by UUID, and who.
        folder: Where runs are written.
        variables: Environment variables that steer communication.
        config: A training whose fit is asked for.
        quick: Leave out what is slow.
        nodes: Machines that take part.
    """

    machine: Machine
    torch: TorchFacts
    devices: tuple[PlannedDevice, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    occupied: Mapping[str, object] = field(default_factory=dict)
    folder: Path = Path("runs")
    variables: Mapping[str, str] = field(default_factory=dict)
    config: RunConfig | None = None
    quick: bool = False
    nodes: int = 1

    @property
    def on_cpu(self) -> bool:
        """Whether what is measured are CPU processes."""
        return bool(self.devices) and self.devices[0].kind == "cpu"


@dataclass(frozen=True)
class Seat:
    """What a measurement in a rank is given. `world` is None in checks of single devices.
    `scratch` is a folder that the ranks of this machine share, where there is one. `note` records
    what is being measured, should it hang.
    """

    rank: int
    size: int
    device: torch.device
    quick: bool
    scratch: Path | None = None
    world: World | None = None
    note: Callable[[str], None] = print

    @property
    def together(self) -> World:
        """The world, in checks where ranks communicate."""
        assert self.world is not None, "ranks meet before checks that are together"
        return self.world


@dataclass(frozen=True)
class HostCheck:
    """A look at the machine from the launching process. `slow` ones are left out by --quick, and
    `heavy` ones, which take the host's cores, wait until nothing is measured any more.
    """

    name: str
    group: str
    look: Callable[[CheckContext], Sequence[Finding]]
    timeout_s: float = 20.0
    slow: bool = False
    heavy: bool = False


def always(context: CheckContext) -> str:
    """For checks that have a sense everywhere."""
    del context
    return ""


@dataclass(frozen=True)
class RankCheck:
    """A measurement in every rank, and what is made of it.

    Attributes:
        name: What is checked.
        group: See `Finding`.
        measure: A function of a module, found by its name in the ranks; returns plain data.
        judge: Given the context and what each rank measured, in rank order.
        together: Whether ranks communicate; else each measures by itself.
        timeout_s: After this a rank counts as hanging.
        slow: Left out by --quick.
        applies: Why the check has no sense for this context; empty where it has.
    """

    name: str
    group: str
    measure: Callable[[Seat], Any]
    judge: Callable[[CheckContext, Sequence[Any]], Sequence[Finding]]
    together: bool = False
    timeout_s: float = 60.0
    slow: bool = False
    applies: Callable[[CheckContext], str] = always


def device_names(context: CheckContext) -> list[str]:
    """What lines call the measured devices, in rank order: "GPU 3", "CPU process 0", or, where
    several machines have a GPU 3, "rank 3".
    """
    if context.nodes > 1:
        return [f"rank {rank}" for rank in range(len(context.devices))]
    return [
        f"CPU process {rank}" if device.kind == "cpu" else f"GPU {device.index}"
        for rank, device in enumerate(context.devices)
    ]


def ranks_in_words(context: CheckContext, count: int) -> str:
    """How many ranks there are, by what they run on: "2 GPUs", "1 CPU process"."""
    if context.on_cpu:
        return f"{count} CPU process{'' if count == 1 else 'es'}"
    return f"{count} GPU{'' if count == 1 else 's'}"
