"""`drumline demo`: from a real language model to a trained SAE with one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.options import Gpus, Json, new_app

app = new_app()
app.info.no_args_is_help = False


@app.command(no_args_is_help=False)
def demo(
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder of the run; the activations are kept there, too."),
    ] = Path("runs"),
    gpus: Gpus = "auto",
    as_json: Json = False,
) -> None:
    """Read a small language model, store its activations on the Python documentation, and train
    a sparse autoencoder on them, on every device there is. A second call keeps the activations.
    """
    from drumline.cli import launching
    from drumline.cli.outcome import finish, followed

    outcome = followed(lambda follower: launching.demo(out, gpus, follower), as_json=as_json)
    finish(outcome, as_json=as_json)
