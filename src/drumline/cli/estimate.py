"""`drumline estimate`: how long a run takes and what it costs, on several numbers of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli import completion
from drumline.cli.options import Json, new_app
from drumline.errors import BadInput

app = new_app()

EPILOG = """[bold]Examples[/]

drumline estimate sae.yaml --gpus 1,2,4,8 --profile h100-sxm

drumline estimate sae.yaml --gpus 1,2 --calibrate

drumline estimate sae.yaml --gpus cpu:1,cpu:2 --calibrate"""


@app.command(epilog=EPILOG)
def estimate(
    *,
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", autocompletion=completion.configs, help="A YAML or JSON file."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys to set on top of the file."),
    ] = None,
    gpus: Annotated[
        str,
        typer.Option(
            "--gpus",
            metavar="COUNTS",
            help="Numbers of devices with commas: 1,2,4,8, or cpu:1,cpu:2 for processes on the "
            "CPU.",
        ),
    ] = "1,2,4,8",
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="A stored profile of a card (h100-sxm, say), or a YAML file."
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Time some steps on one device of this machine, and the links between several; "
            "with --profile that card's links stand in for devices that are not here.",
        ),
    ] = False,
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prices an hour; see drumline's prices.yaml."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the arithmetic of every number.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict step time, throughput, time to finish and cost of a run on several numbers of
    devices.
    """
    from drumline.cli.output import print_json, results
    from drumline.cli.speeds import for_estimate
    from drumline.config import load_config
    from drumline.launch.preflight import visible_machine
    from drumline.planning.estimate import check_counts
    from drumline.planning.estimate import estimate as make_estimate
    from drumline.planning.prices import load_prices

    counts, on_cpu = parse_counts(gpus)
    given = [*(overrides or []), *(["devices=cpu"] if on_cpu else [])]
    read = load_config(config, given)
    priced = load_prices(prices)
    check_counts(read, counts)
    speed = for_estimate(read, counts, visible_machine(), profile, calibrate)
    found = make_estimate(read, counts, speed, priced)
    if as_json:
        print_json(found.as_dict())
        return
    from drumline.cli.candidates import estimates_lines, estimates_table

    console = results()
    console.print(estimates_table(found))
    for line in estimates_lines(found, explain=explain):
        console.print(line, style="dim", markup=False, soft_wrap=True)


def parse_counts(text: str) -> tuple[list[int], bool]:
    """Numbers of devices, and whether they are processes on the CPU.

    Raises:
        BadInput: If something is not a number from 1, or GPUs and the CPU are mixed.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    on_cpu = [part.startswith("cpu:") for part in parts]
    numbers = [part.removeprefix("cpu:") for part in parts]
    if (
        not parts
        or len(set(on_cpu)) > 1
        or not all(number.isdecimal() and int(number) > 0 for number in numbers)
    ):
        raise BadInput(
            f"--gpus {text} does not list numbers of devices.",
            remedy="For example: 1,2,4,8, or cpu:1,cpu:2",
        )
    return sorted({int(number) for number in numbers}), on_cpu[0]
