"""`drumline plan`: what a run would do on these devices, and why; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli import completion
from drumline.cli.options import GPUS_HELP, Json, new_app

if TYPE_CHECKING:
    from collections.abc import Collection

    from drumline.bench.whole_plan import WholePlan
    from drumline.config import RunConfig
    from drumline.hardware import Machine
    from drumline.planning.batch import Batch, LearningRate

app = new_app()

EPILOG = """[bold]Examples[/]

drumline plan sae.yaml

drumline plan sae.yaml --simulate 8xH100 --explain

drumline plan sae.yaml --gpus 0,2 global_batch=8192 --json"""


@app.command(epilog=EPILOG)
def plan(
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
        str | None,
        typer.Option(
            "--gpus", metavar="WHICH", help=f"{GPUS_HELP} By default the config's devices key."
        ),
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(metavar="DEVICES", help="Plan for devices that are not here: 8xH100, say."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="What the devices can do; by default by their name."
        ),
    ] = None,
    per_device: Annotated[
        int | None,
        typer.Option(
            "--per-device", metavar="SAMPLES", min=1, help="Set the global batch by device."
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the arithmetic of every number.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the plan there, as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show devices, mode, shares and predicted step times of a run, and why; nothing is started."""
    from drumline.bench.whole_plan import whole_plan
    from drumline.config import load_config
    from drumline.hardware.device_locks import held_on
    from drumline.launch.preflight import visible_machine

    given = [*(overrides or []), *([] if gpus is None else [f"devices={gpus!r}"])]
    read = load_config(config, given)
    machine = visible_machine() if simulate is None else _simulated(simulate)
    occupied = held_on(machine) if simulate is None else {}  # nobody holds what is not here
    before = read.global_batch
    if per_device is not None:
        read = _with_batch(read, machine, occupied, per_device)
    made = whole_plan(read, machine, occupied, profile=profile, batch_before=before)
    _show(read, made, before, explain=explain, out=out, as_json=as_json)


def _simulated(setting: str) -> Machine:
    from drumline.hardware import Machine

    return Machine.probe(simulate=setting)


def _with_batch(
    config: RunConfig, machine: Machine, occupied: Collection[str], per_device: int
) -> RunConfig:
    """The config with a global batch of so many samples for each device it would get."""
    from drumline.config.load import override
    from drumline.planning.batch import global_batch_of
    from drumline.planning.devices import choose_devices

    granularity = config.task.granularity if config.task else 1
    devices, _ = choose_devices(config.devices, machine, occupied, at_most=2**30)
    total = global_batch_of(per_device, len(devices), granularity)
    return override(config, [f"global_batch={total}"])


def _show(
    config: RunConfig,
    whole: WholePlan,
    before: int,
    *,
    explain: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    from drumline.cli.output import print_json, results

    made, data = whole.plan, whole.as_dict()
    if out is not None:
        _write(out, data)
    if as_json:
        print_json(data)
        return
    from drumline.cli.candidates import candidates_arithmetic, candidates_table
    from drumline.cli.plan import render_plan

    console = results()
    console.print(render_plan(_plain(made.as_dict())))
    console.print(_batch_lines(whole.batch, whole.rates, before, config.global_batch))
    if made.candidates:
        console.print(candidates_table(made.candidates))
    if made.memory:
        from drumline.cli.memory import memory_lines, memory_table

        console.print(memory_table(made.memory))
        for line in memory_lines(made.memory, explain=explain):
            console.print(line, style="dim", markup=False, soft_wrap=True)
    for line in whole.missing:
        console.print(line, style="dim", markup=False, soft_wrap=True)
    for line in candidates_arithmetic(made.candidates) if explain else []:
        console.print(line, style="dim", markup=False, soft_wrap=True)


def _batch_lines(batch: Batch, rates: tuple[LearningRate, ...], before: int, after: int) -> Any:
    from rich.text import Text

    lines = list(batch.lines)
    if before != after:
        lines.append("learning rate for the other batch, shown and not applied:")
        lines += [f"  {rate.rule}: {rate.line}" for rate in rates]
    return Text("\n".join(lines))


def _plain(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan as `plan.json` holds it, without the candidates."""
    import json

    del plan["candidates"], plan["memory"]
    plain: dict[str, Any] = json.loads(json.dumps(plan))
    return plain


def _write(path: Path, data: dict[str, Any]) -> None:
    import json

    from drumline.errors import BadInput
    from drumline.events import finite
    from drumline.run_directory import write_atomically

    try:
        write_atomically(path, json.dumps(finite(data), indent=2, default=str) + "\n")
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error.strerror}.", remedy="Choose another with --out."
        ) from error
