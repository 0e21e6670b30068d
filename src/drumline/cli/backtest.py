"""`drumline backtest`: what trained policies would have made of days they were not trained on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from drumline.cli import completion
from drumline.cli.options import Json, new_app
from drumline.errors import BadInput

if TYPE_CHECKING:
    from drumline.tasks.clstm_ppo.trading.report import Report

app = new_app()

EPILOG = """[bold]Examples[/]

drumline backtest trading-20250131

drumline backtest seed-0 seed-1 seed-2 --chart trading.png

drumline backtest trading-20250131 task.environment.evaluated_on=train"""

COLUMNS = {
    "cumulative_return": "return",
    "annual_return": "yearly",
    "annual_volatility": "volatility",
    "max_drawdown": "drawdown",
    "sharpe": "Sharpe",
    "turnover": "turnover",
}
_PLAIN = {"sharpe": 2, "turnover": 1}
"""Decimals of what is no percentage."""


@app.command(epilog=EPILOG)
def backtest(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [KEY=VALUE]...",
            autocompletion=completion.runs,
            help="Runs that differ in their seeds; keys to set on top of their configs.",
        ),
    ],
    checkpoint: Annotated[
        str, typer.Option(metavar="best|last|STEP", help="Which checkpoint.")
    ] = "last",
    chart: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw it: a .png, .svg or .pdf file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Trade on the test days with the policies of runs, beside random actions, buying and holding,
    and equal parts.
    """
    if checkpoint not in ("best", "last") and not checkpoint.isdecimal():
        raise BadInput(
            f"--checkpoint is {checkpoint!r}.", remedy="Use best, last or the number of a step."
        )
    names = [word for word in runs if "=" not in word]
    if not names:
        raise BadInput("No run was named.", remedy="List them with: drumline runs")
    from drumline.cli import launching
    from drumline.cli.find import find_run

    request = launching.BacktestRequest(
        [find_run(name).path for name in names],
        [word for word in runs if "=" in word],
        checkpoint,
        chart,
    )
    show_report(launching.backtest(request), chart, as_json=as_json)


def show_report(report: Report, chart: Path | None, *, as_json: bool) -> None:
    """Print a report, and where its chart is."""
    from drumline.cli.output import print_json, results

    if as_json:
        print_json(report.as_dict())
        return
    console = results()
    console.print()
    console.print(report_table(report))
    console.print()
    console.print(Text(report.caption(), style="dim"))
    for note in report.notes:
        console.print(Text(f"· {note}"), soft_wrap=True)
    if chart is not None:
        console.print(Text(f"Chart: {chart}"), soft_wrap=True)


def report_table(report: Report) -> Table:
    """One row a strategy; where it was tried several times means, and standard deviations below."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("tries", justify="right")
    for title in COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for strategy in report.strategies:
        spread, tries = strategy.spread(), len(strategy.values)
        means = (_cell(name, spread[name].mean) for name in COLUMNS)
        table.add_row(strategy.name, str(tries), *means)
        if tries > 1:
            deviations = (_cell(name, spread[name].deviation) for name in COLUMNS)
            table.add_row("", "±", *deviations, style="dim")
    return table


def _cell(name: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.{_PLAIN[name]}f}" if name in _PLAIN else f"{value:.1%}"
