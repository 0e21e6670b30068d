"""`drumline evaluate`: what a run's checkpoint is worth."""

from __future__ import annotations

from typing import Annotated

import typer

from drumline.cli.options import Json, Run, new_app
from drumline.errors import BadInput

app = new_app()

EPILOG = """[bold]Examples[/]

drumline evaluate cartpole-20250131

drumline evaluate cartpole-20250131 task.evaluation.episodes=1000 --checkpoint best"""


@app.command(epilog=EPILOG)
def evaluate(
    run: Run,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Keys to set on top of the run's config, as for train."
        ),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(metavar="best|last|STEP", help="Which checkpoint.")
    ] = "last",
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="WHICH", help="The one device: auto, cpu, or an index.")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Evaluate a checkpoint of a run as its task does, on one device. Nothing is written."""
    if checkpoint not in ("best", "last") and not checkpoint.isdecimal():
        raise BadInput(
            f"--checkpoint is {checkpoint!r}.", remedy="Use best, last or the number of a step."
        )
    from drumline.cli import launching
    from drumline.cli.find import find_run
    from drumline.cli.outcome import finish

    request = launching.EvaluateRequest(find_run(run).path, overrides or [], gpus, checkpoint)
    finish(launching.evaluate(request), as_json=as_json)
