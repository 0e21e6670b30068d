"""`drumline runs`: the run directories there are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.completion import RUNS
from drumline.cli.options import Json, new_app
from drumline.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from drumline.cli.state import RunState

app = new_app()

STYLES = {"done": "green", "running": "cyan", "stopped": "yellow", "failed": "red"}
LESS_NEEDED = ("started", "size", "task")
"""Columns that a narrow terminal goes without, the first first."""


@app.command(no_args_is_help=False)
def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of run directories.")
    ] = RUNS,
    as_json: Json = False,
) -> None:
    """List the runs there are, newest first."""
    from drumline.cli.output import print_json, results
    from drumline.cli.state import read_state
    from drumline.run_directory import find_runs

    if folder != RUNS and not folder.is_dir():
        raise BadInput(f"There is no folder {folder}.", remedy="Check the path.", path=str(folder))
    now = time.time()
    states = [read_state(run, now) for run in find_runs(folder)]
    if as_json:
        print_json([state.as_dict() for state in states])
    elif states:
        console = results()
        console.print(_table(states, now, console.width))
    else:
        results().print(f"There are no runs in {folder}. Start one with: drumline demo")


def _table(states: list[RunState], now: float, width: int) -> Table:
    """One row a run; a narrow terminal gets fewer columns, never a shortened name."""
    from rich.table import Table
    from rich.text import Text

    rows = [_cells(state, now) for state in states]
    left_out = _left_out(rows, width)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in rows[0]:
        if name not in left_out:
            right = name in ("step", "started", "size")
            table.add_column(
                name,
                justify="right" if right else "left",
                overflow="fold",
                no_wrap=name != "run",
                min_width=16 if name == "run" else None,
            )
    for state, row in zip(states, rows, strict=True):
        styles = {"run": "bold", "status": STYLES.get(state.status, "dim")}
        shown = {name: text for name, text in row.items() if name not in left_out}
        table.add_row(*(Text(text, style=styles.get(name, "")) for name, text in shown.items()))
    return table


def _left_out(rows: list[dict[str, str]], width: int) -> set[str]:
    """The columns without which the others fit."""
    needed = {name: 2 + max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    left_out: set[str] = set()
    for name in LESS_NEEDED:
        if sum(needed.values()) <= width:
            break
        del needed[name]
        left_out.add(name)
    return left_out


def _cells(state: RunState, now: float) -> dict[str, str]:
    from drumline.cli.words import age, number, size

    steps = f"/{state.steps:,}" if state.steps else ""
    return {
        "run": state.name,
        "task": state.task,
        "status": state.status,
        "step": f"{state.step:,}{steps}",
        "metric": f"{state.metric} {number(state.value)}" if state.metric else "",
        "started": age(now - state.started_t),
        "size": size(state.size_bytes),
    }
