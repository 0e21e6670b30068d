"""`drumline walk-forward`: a policy trained anew before every quarter of the test days."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli import completion
from drumline.cli.options import GPUS_HELP, Json, new_app

if TYPE_CHECKING:
    from drumline.config import RunConfig

app = new_app()

EPILOG = """[bold]Examples[/]

drumline walk-forward trading.yaml

drumline walk-forward trading.yaml num_episodes=2000 --every year --chart walk.png"""


class Every(StrEnum):
    """How often a new policy takes over."""

    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"


@app.command(epilog=EPILOG)
def walk_forward(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG",
            autocompletion=completion.configs,
            help="A YAML or JSON file with a trading environment.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys to set on top of the file, as for train."),
    ] = None,
    every: Annotated[
        Every, typer.Option(help="Length of a period, by the calendar.")
    ] = Every.QUARTER,
    gpus: Annotated[str, typer.Option("--gpus", metavar="WHICH", help=GPUS_HELP)] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the runs; by default one in ./runs."),
    ] = None,
    chart: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw it: a .png, .svg or .pdf file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a policy before each quarter of the test days, on all days before it, and let them
    trade in turn. The same command goes on where it was stopped.
    """
    from drumline.cli import launching
    from drumline.cli.backtest import show_report
    from drumline.cli.outcome import finish, followed
    from drumline.cli.train import refuse_another_run

    request = launching.WalkForwardRequest(
        config,
        [*(overrides or []), f"devices={gpus}"],
        every.value,
        out or Path("runs") / f"{config.stem}-by-{every.value}",
        chart,
    )

    def train_one(one: RunConfig) -> launching.Outcome:
        if one.run_dir is not None:
            refuse_another_run(one, one.run_dir)
        return followed(lambda follower: launching.train(one, follower), as_json=as_json)

    report = launching.walk_forward(request, train_one)
    if isinstance(report, launching.Outcome):
        finish(report, as_json=as_json)
    else:
        show_report(report, chart, as_json=as_json)
