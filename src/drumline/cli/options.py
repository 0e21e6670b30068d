"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from drumline.cli import completion

GPUS_HELP = (
    "Devices: auto (all free GPUs, else the CPU), all, a number of them, indices or UUIDs with "
    "commas (0,2), cpu or cpu:N for N processes on the CPU."
)

Gpus = Annotated[str, typer.Option("--gpus", metavar="WHICH", help=GPUS_HELP)]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON value on standard output, for programs.")
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        autocompletion=completion.runs,
        help="A run directory, or the start of the name of one below ./runs.",
    ),
]


def new_app() -> typer.Typer:
    """An app for a module's command or group of commands; the root brings completion."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode="rich",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
