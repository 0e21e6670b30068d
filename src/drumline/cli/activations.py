"""`drumline activations`: what a language model computes inside, stored for training."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.options import Gpus, Json, new_app

app = new_app()


class Dtype(StrEnum):
    """Arithmetic of the model and type of what is stored."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@app.callback()
def activations() -> None:
    """Store a language model's activations."""


@app.command()
def extract(
    *,
    model: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="A Hugging Face causal model's folder, a GGUF file, or builtin:smollm2.",
        ),
    ],
    layer: Annotated[
        int, typer.Option(metavar="N", min=0, help="Keep the residual stream after this layer.")
    ],
    text: Annotated[
        list[str],
        typer.Option(
            metavar="PATH",
            help="Text files, folders of them, or builtin:pydoc; may be given several times.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the shards and their manifest go.")
    ],
    more_text: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="More text, so that --text *.txt works."),
    ] = None,
    gpus: Gpus = "auto",
    dtype: Annotated[
        Dtype, typer.Option(help="Type the model computes in and activations are stored in.")
    ] = Dtype.BFLOAT16,
    length: Annotated[
        int, typer.Option(metavar="TOKENS", min=2, help="Tokens in one context.")
    ] = 128,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Read at most this many tokens."),
    ] = None,
    keep_outliers: Annotated[
        bool,
        typer.Option(
            "--keep-outliers",
            help="Also keep attention sinks, so that rows of two layers stand side by side.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run text through a language model and store the activations after one layer, in shards
    with a manifest. Call it again to go on where it was interrupted.
    """
    from drumline.cli import launching
    from drumline.cli.outcome import finish, followed
    from drumline.config.load import validate
    from drumline.tasks.sae.extract_options import ExtractOptions

    asked = {
        "model": model,
        "layer": layer,
        "text": [*text, *(more_text or [])],
        "out": out,
        "dtype": dtype.value,
        "length": length,
        "tokens": tokens,
    }
    if keep_outliers:
        asked["outlier_ratio"] = None
    options = validate(ExtractOptions, asked, "The extraction")
    outcome = followed(lambda follower: launching.extract(options, gpus, follower), as_json=as_json)
    finish(outcome, as_json=as_json, written="Activations")
