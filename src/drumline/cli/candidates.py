"""Candidates of a plan and estimates of a run, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from drumline.cli.words import duration
from drumline.planning.cost_model import Candidate
from drumline.planning.estimate import Estimates
from drumline.planning.quantities import span


def candidates_table(candidates: Sequence[Candidate]) -> Table:
    """Every way to spread the run, with its predicted step time."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("candidate")
    table.add_column("devices", justify="right")
    table.add_column("step", justify="right")
    table.add_column("", style="dim")
    for candidate in candidates:
        step = "–" if candidate.step_s is None else span(candidate.step_s)
        table.add_row(candidate.mode, str(candidate.devices), step, Text(candidate.note))
    return table


def candidates_arithmetic(candidates: Sequence[Candidate]) -> list[str]:
    """The parts of every predicted step time."""
    return [
        f"{candidate.mode} on {candidate.devices}, {part.name}: {part.line}"
        for candidate in candidates
        for part in candidate.parts
    ]


def estimates_table(found: Estimates) -> Table:
    """One row for each number of devices."""
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
            span(row.finish_s) if row.finish_s < 1 else duration(row.finish_s),
            "missing" if row.cost is None else f"{_price(row.cost)} {found.currency}",
        )
    return table


def _price(cost: float) -> str:
    return f"{cost:,.2f}" if cost >= 0.1 or cost == 0 else f"{cost:.2g}"


def estimates_lines(found: Estimates, *, explain: bool) -> list[str]:
    """Where the numbers come from, and with `explain` their arithmetic."""
    lines = [
        f"{found.steps:,} steps of {found.global_batch:,} samples, from {found.source}",
        found.price_note,
        *found.notes,
        "time is that of the steps; start, evaluation and checkpoints come on top",
    ]
    if explain:
        for row in found.rows:
            lines += [f"{row.devices} × {found.device}, {line}" for line in row.lines]
    return lines
