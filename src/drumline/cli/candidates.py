"""Candidates of a plan and estimates of a run, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drumline.cli.words import duration
from drumline.planning.cost_model import Candidate
from drumline.planning.estimate import Estimates
from drumline.planning.quantities import span


def render_candidates(
    candidates: Sequence[Candidate], chosen: str, *, explain: bool
) -> RenderableType:
    """Every way to spread the run with its predicted step time, and with `explain` its parts."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (("candidate", "left"), ("devices", "right"), ("step", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    table.add_column("", style="dim")
    for candidate in candidates:
        step = "–" if candidate.step_s is None else span(candidate.step_s)
        table.add_row(candidate.mode, str(candidate.devices), step, Text(candidate.note))
    if not explain:
        return table
    lines = [
        f"{candidate.mode} on {candidate.devices}, {part.name}: {part.line}"
        for candidate in candidates
        for part in candidate.parts
        if candidate.selectable or candidate.mode == chosen
    ]
    return Group(table, Text("\n".join(lines), style="dim"))


def render_estimates(found: Estimates, *, explain: bool) -> RenderableType:
    """One row for each number of devices, then where the numbers come from."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("devices", "step", "samples/s", "speedup", "efficiency", "time", "cost"):
        table.add_column(name, justify="right")
    for row in found.rows:
        table.add_row(
            str(row.devices),
            span(row.step_s),
            f"{row.samples_per_s:,.0f}",
            f"{row.speedup:.2f}",
            f"{row.efficiency:.0%}",
            duration(row.finish_s),
            "missing" if row.cost is None else f"{row.cost:,.2f} {found.currency}",
        )
    lines = [
        f"{found.steps:,} steps of {found.global_batch:,} samples, from {found.source}",
        found.price_note,
        *found.notes,
        "time is that of the steps; start, evaluation and checkpoints come on top",
    ]
    if explain:
        for row in found.rows:
            lines += [f"{row.devices} × {found.device}: {line}" for line in row.lines]
    return Group(table, Text("\n".join(lines), style="dim"))
