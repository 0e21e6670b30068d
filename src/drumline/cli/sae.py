"""`drumline sae`: what is done with a trained sparse autoencoder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.options import Json, Run, new_app
from drumline.errors import BadInput

app = new_app()


class Format(StrEnum):
    """What other programs read."""

    SAELENS = "saelens"
    SAFETENSORS = "safetensors"


@app.callback()
def sae() -> None:
    """Export a trained sparse autoencoder."""


@app.command()
def export(
    run: Run,
    to_format: Annotated[
        Format,
        typer.Option(
            "--format", help="saelens: a folder that SAELens loads. safetensors: weights."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where it goes; by default below the run directory."),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(metavar="best|last|STEP", help="Which checkpoint.")
    ] = "best",
    as_json: Json = False,
) -> None:
    """Write the sparse autoencoder of a run in a form that other programs read."""
    if checkpoint not in ("best", "last") and not checkpoint.isdecimal():
        raise BadInput(
            f"--checkpoint is {checkpoint!r}.", remedy="Use best, last or the number of a step."
        )
    from drumline.cli import launching
    from drumline.cli.find import find_run
    from drumline.cli.outcome import finish

    path = find_run(run).path
    place = out if out is not None else path / "export" / to_format.value
    request = launching.ExportRequest(path, to_format.value, place, checkpoint)
    finish(launching.export(request), as_json=as_json, written="Written to")
