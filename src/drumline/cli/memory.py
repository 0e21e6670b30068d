"""What a run needs of each kind of device's memory, for reading."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from drumline.planning.availability import gib
from drumline.planning.memory import MemoryEstimate
from drumline.planning.memory_fit import KindMemory


def memory_table(kinds: Sequence[KindMemory]) -> Table:
    """One row for each kind of device: need with its range, what is free, and what would fit."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("memory on")
    for name in ("needed", "range", "free"):
        table.add_column(name, justify="right")
    table.add_column("")
    table.add_column("largest micro-batch", justify="right")
    for kind in kinds:
        needed = kind.needed
        spread = f"{gib(needed.low + needed.context)} to {gib(needed.high + needed.context)}"
        free = "n/a" if kind.capacity is None else gib(kind.capacity)
        largest = "n/a" if kind.capacity is None else "none fits"
        if kind.largest is not None:
            largest = f"{kind.largest.micro_batch:,}"
        row = (kind.name, gib(needed.total), spread, free, _verdict(kind), largest)
        table.add_row(*map(Text, row))
    return table


def memory_lines(kinds: Sequence[KindMemory], *, explain: bool) -> list[str]:
    """What the need on the chosen kind is made of, what it leaves out, and its arithmetic."""
    first = kinds[0]
    lines = [f"memory: {_parts(first.needed)}"]
    lines += [f"memory, not known: {line}" for line in first.needed.unknown]
    if explain:
        for kind in kinds:
            lines += [f"memory of {kind.name}: {line}" for line in kind.needed.explain()]
            if kind.largest is not None:
                lines.append(
                    f"memory of {kind.name}: a micro-batch of {kind.largest.micro_batch:,} needs "
                    f"{gib(kind.largest.total)}"
                )
    return lines


def _verdict(kind: KindMemory) -> str:
    fit = kind.fit
    if fit is None:
        return ""
    return "fits" if fit.fits else f"short by {gib(-fit.left)}"


def _parts(needed: MemoryEstimate) -> str:
    inside = sum(
        (
            *(needed.parameters, needed.gradients, needed.optimizer),
            *(needed.activations, needed.buckets, needed.workspace),
        )
    )
    parts = {
        "parameters": needed.parameters,
        "gradients": needed.gradients,
        "optimizer": needed.optimizer,
        "activations": needed.activations,
        "buckets": needed.buckets,
        "workspaces": needed.workspace,
        "free blocks": needed.reserved_peak - inside,
        "context": needed.context,
    }
    return " + ".join(f"{name} {gib(size)}" for name, size in parts.items() if size > 0)
