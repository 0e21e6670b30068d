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
        results().print(_table(states, now))
    else:
        results().print(f"There are no runs in {folder}. Start one with: drumline demo")


def _table(states: list[RunState], now: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    from drumline.cli.words import age, number, size

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", style="bold", overflow="fold", ratio=1)
    table.add_column("task", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("metric", justify="right", no_wrap=True)
    table.add_column("started", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    for state in states:
        steps = f"/{state.steps:,}" if state.steps else ""
        shown = f"{state.metric} {number(state.value)}" if state.metric else ""
        table.add_row(
            Text(state.name),
            Text(state.task),
            Text(state.status, style=STYLES.get(state.status, "dim")),
            f"{state.step:,}{steps}",
            Text(shown),
            age(now - state.started_t),
            size(state.size_bytes),
        )
    return table
