"""`drumline activations`: what a language model computes inside, stored for training."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.options import Gpus, Json, new_app
from drumline.errors import BadInput

app = new_app()


class Dtype(StrEnum):
    """Arithmetic of the model and type of what is stored."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@app.callback()
def activations() -> None:
    """Store a language model's activations."""


@app.command()
def extract(
    *,
    model: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="A Hugging Face causal model's folder or name, or a GGUF file."
        ),
    ],
    layer: Annotated[
        int, typer.Option(metavar="N", min=0, help="Keep the residual stream after this layer.")
    ],
    text: Annotated[
        list[Path],
        typer.Option(
            metavar="PATH", help="Text files or folders of them; may be given several times."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the shards and their manifest go.")
    ],
    more_text: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="More text, so that --text *.txt works."),
    ] = None,
    gpus: Gpus = "auto",
    dtype: Annotated[
        Dtype, typer.Option(help="Type of the model and of the stored values; auto: bfloat16.")
    ] = Dtype.AUTO,
    length: Annotated[
        int, typer.Option(metavar="TOKENS", min=2, help="Tokens in one context.")
    ] = 128,
    as_json: Json = False,
) -> None:
    """Run text through a language model and store the activations after one layer, in shards
    with a manifest. Call it again to go on where it was interrupted.
    """
    paths = [*text, *(more_text or [])]
    for path in paths:
        if not path.exists():
            raise BadInput(f"There is no text at {path}.", remedy="Check the path.", path=str(path))
    from drumline.cli import launching
    from drumline.cli.outcome import finish, followed

    request = launching.ExtractRequest(model, layer, paths, out, gpus, dtype.value, length)
    outcome = followed(lambda follower: launching.extract(request, follower), as_json=as_json)
    finish(outcome, as_json=as_json, written="Activations")
