"""Running a request under the live display, and showing how it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer
from rich.table import Table
from rich.text import Text

from drumline.cli.follow import Follower
from drumline.cli.launching import Outcome
from drumline.cli.output import messages, print_error, print_json, results
from drumline.cli.progress import ProgressView
from drumline.cli.words import label, number


def followed(work: Callable[[Follower], Outcome], *, as_json: bool) -> Outcome:
    """Do the work under the live display. With --json it is shown only to a person."""
    quiet = as_json and not sys.stderr.isatty()
    view = ProgressView(messages(), quiet=quiet)
    with Follower(view) as follower:
        outcome = work(follower)
    if outcome.status == "failed" and not view.summary.end and not as_json:
        print_error(outcome.message)
    return outcome


def finish(
    outcome: Outcome,
    *,
    as_json: bool,
    written: str = "Run directory",
    go_on: str = "Go on with the same command.",
) -> None:
    """Print the outcome and leave with its exit code.

    Args:
        outcome: What to print.
        as_json: Print it as JSON.
        written: What `outcome.path` is.
        go_on: What a user does after a stop.

    Raises:
        typer.Exit: Always.
    """
    if as_json and outcome.reports:
        print_json(outcome.as_dict())
    elif outcome.reports:
        _print(outcome, written, go_on)
    raise typer.Exit(outcome.exit_code)


def metrics_table(metrics: dict[str, float]) -> Table:
    """Metrics with their full names."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", style="bold")
    for name, value in metrics.items():
        table.add_row(label(name), number(value))
    return table


def _print(outcome: Outcome, written: str, go_on: str) -> None:
    console = results()
    if outcome.metrics:
        console.print()
        console.print(metrics_table(outcome.metrics))
        console.print()
    is_failed = outcome.status == "failed"
    place = "Run directory" if is_failed else written
    lines = [] if outcome.path is None else [f"{place}: {outcome.path}"]
    if outcome.status == "stopped":
        lines.append(go_on)
    if is_failed and outcome.path is not None:
        lines.append(f"Logs of the ranks: {outcome.path / 'logs'}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
