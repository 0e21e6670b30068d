"""`drumline check`: whether training will work on this machine, and what to do where not."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.options import Json, new_app

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.text import Text

    from drumline.bench.checks import CheckContext, Finding

app = new_app()

GPUS_HELP = (
    "Devices to measure: all that are free and well, a number of them, indices or UUIDs with "
    "commas (0,2), cpu:N."
)
MARKS = {
    "pass": ("pass", "green"),
    "warn": ("warn", "yellow"),
    "fail": ("FAIL", "bold red"),
    "skipped": ("skip", "dim"),
}
_NAME_WIDTH = 24


@app.command(no_args_is_help=False)
def check(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Leave out what is slow; a few seconds on most machines."),
    ] = False,
    as_json: Json = False,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="CONFIG", help="Also check whether this training fits."),
    ] = None,
    gpus: Annotated[str, typer.Option("--gpus", metavar="WHICH", help=GPUS_HELP)] = "all",
) -> None:
    """Check whether training will work on this machine: software, health and limits, the rates of
    each device, and a real all-reduce whose sum is verified. Leaves with 1 where a check fails.

    Started by torchrun on several nodes, it checks all of them together.
    """
    import time

    start = time.perf_counter()
    from drumline.bench.checks import exit_code, prepare
    from drumline.cli.output import print_json
    from drumline.config import ClusterEnvironment, load_config
    from drumline.hardware.device_locks import held_on
    from drumline.launch.preflight import visible_machine

    config = load_config(model) if model is not None else None
    machine = visible_machine()
    context = prepare(machine, gpus, config, held_on(machine), quick=quick)
    environment = ClusterEnvironment.detect()
    is_main = environment.rank == 0
    with _ended_like_interrupted(), held(context):
        found = _shown(_findings(context, environment), shown=is_main and not as_json)
    if is_main and as_json:
        print_json(_report(context, found, time.perf_counter() - start))
    elif is_main:
        _print_summary(found, time.perf_counter() - start)
    raise typer.Exit(exit_code(found))


@contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """SIGTERM ends like Ctrl-C, which leaves nothing behind."""
    import signal

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def held(context: CheckContext) -> Iterator[None]:
    """Hold the devices that nobody holds, so that no training begins beside what is measured. One
    that is taken at this moment is measured as one is that is named: as it is.
    """
    from drumline.hardware.device_locks import DeviceLocked, DeviceLocks, lock_folder

    free = [d.uuid for d in context.devices if d.uuid and d.uuid not in context.occupied]
    locks = None
    if free:
        with suppress(DeviceLocked, OSError):
            locks = DeviceLocks(lock_folder(), free)
            locks.tell()
    try:
        yield
    finally:
        if locks is not None:
            locks.release()


def _findings(context: CheckContext, environment: Any) -> Iterable[Finding]:
    from drumline.bench.checks import run_checks
    from drumline.bench.checks.joined import check_joined

    return run_checks(context) if environment.is_alone else check_joined(context, environment)


def _shown(findings: Iterable[Finding], *, shown: bool) -> list[Finding]:
    """All findings, each printed as it comes; a spinner on a terminal tells that more will."""
    from drumline.cli.output import messages, results

    listed: list[Finding] = []
    if not shown:
        return list(findings)
    console = results()
    with messages().status("checking"):
        for finding in findings:
            listed.append(finding)
            for line in _lines(finding):
                console.print(line, soft_wrap=True)
    return listed


def _lines(finding: Finding) -> list[Text]:
    """One line, and one more for the remedy of what is not well."""
    from rich.text import Text

    mark, style = MARKS[finding.status.value]
    dim = "dim" if finding.status.value == "skipped" else ""
    name = f"  {finding.name:<{_NAME_WIDTH}}  "
    lines = [Text.assemble((mark, style), (name, dim or "bold"), (finding.text, dim))]
    if finding.remedy and finding.status.value in ("warn", "fail"):
        lines.append(Text.assemble(("      → ", "cyan"), finding.remedy))
    return lines


def _print_summary(findings: Sequence[Finding], seconds: float) -> None:
    from rich.text import Text

    from drumline.bench.checks import counts
    from drumline.cli.output import results
    from drumline.cli.words import duration, plural

    many = counts(findings)
    if many["fail"]:
        verdict, style = "Training will not work here as asked", "bold red"
    elif many["warn"]:
        verdict, style = "Training will work here, with warnings", "yellow"
    else:
        verdict, style = "Training will work here", "green"
    told = (
        f": {many['pass']} passed, {plural(many['warn'], 'warning')}, {many['fail']} failed, "
        f"{many['skipped']} skipped, in {duration(seconds)}."
    )
    results().print(Text.assemble("\n", (verdict, style), told), soft_wrap=True)


def _report(context: CheckContext, findings: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """The whole result for programs."""
    from dataclasses import asdict

    from drumline.bench.checks import counts, with_torch

    context = with_torch(context)
    many, host = counts(findings), context.machine.host
    worst = next((status for status in ("fail", "warn") if many[status]), "pass")
    return {
        "version": 1,
        "status": worst,
        "counts": many,
        "seconds": round(seconds, 3),
        "quick": context.quick,
        "machine": {
            "hostname": host.hostname,
            "driver_version": host.driver_version,
            "cuda_driver_version": host.cuda_driver_version,
            "torch_version": context.torch.version,
            "devices": [
                {"index": one.index, "uuid": one.uuid, "name": one.name, "kind": one.kind}
                for one in context.machine.devices
            ],
        },
        "measured": [asdict(device) for device in context.devices],
        "left_out": dict(context.left_out),
        "findings": [finding.as_dict() for finding in findings],
    }
