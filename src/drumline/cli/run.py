"""`drumline run`: a user's own script, one process per device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.options import Gpus, Json, new_app
from drumline.errors import BadInput

app = new_app()

EPILOG = """[bold]Examples[/]

drumline run train.py --gpus all

drumline run train.py --lr 3e-4 --gpus 2

drumline run --gpus 2 train.py -- --json --help

drumline run --run-dir runs/train-20250131 train.py

Options that drumline knows are its own wherever they stand; everything after -- goes to the \
script as it is."""


@app.command(
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
)
def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="The script to run.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")
    ] = None,
    gpus: Gpus = "auto",
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The run directory; by default a new one in ./runs. A Trainer goes on from the "
            "last good checkpoint of one that is there.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run your own script, one process per device. Ranks, device and restarts are set up as in a
    training; the script itself needs no launcher.
    """
    if not script.is_file():
        raise BadInput(f"There is no script {script}.", remedy="Check the path.", path=str(script))
    from drumline.cli import launching
    from drumline.cli.outcome import finish, followed

    request = launching.ScriptRequest(script, arguments or [], gpus, run_dir)
    outcome = followed(lambda follower: launching.run_script(request, follower), as_json=as_json)
    finish(
        outcome,
        as_json=as_json,
        go_on=f"Go on with the same command and --run-dir {outcome.path}",
    )
