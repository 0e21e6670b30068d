"""What happens on the launching machine before ranks start: look, plan, make the run directory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from drumline.config import Mode, RunConfig
from drumline.config.environment import visible_devices_setting
from drumline.errors import DeviceError
from drumline.hardware import Machine, visible_devices
from drumline.planning import Plan, plan
from drumline.run_directory import RunDirectory

NOT_PREDICTED = (
    "memory and step times were not predicted, so that the run starts at once: `drumline plan` "
    "predicts both, may find that fewer devices are as fast, and is followed from then on"
)

Predicted = Callable[[RunConfig, Machine, Collection[str]], Plan | None]
"""Plans with what was predicted before; None where that does not suffice."""


def visible_machine() -> Machine:
    """This machine, with only the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    machine = Machine.probe()
    setting, order = visible_devices_setting()
    if setting is None:
        return machine
    return replace(machine, devices=tuple(visible_devices(machine.devices, setting, order).devices))


def plan_here(
    config: RunConfig,
    machine: Machine | None = None,
    occupied: Collection[str] = (),
    predicted: Predicted | None = None,
) -> Plan:
    """The plan of a config on this machine. Nothing is traced or timed for it.

    Args:
        config: A checked config.
        machine: What is there; by default it is looked at.
        occupied: UUIDs of devices that others hold; a mapping says who they are.
        predicted: Knows what was predicted before. CPU processes are planned without.

    Raises:
        DeviceError: If the devices asked for are not there, not free, only simulated, or by what
            was predicted too small.
        BadInput: If the config cannot be spread over them, or names what is not there.
    """
    if config.task is not None:
        config.task.check()
    machine = machine or visible_machine()
    made = plan(config, machine, occupied)
    simulated = [device for device in made.devices if device.simulated]
    if simulated:
        raise DeviceError(
            f"{simulated[0].name} is simulated; nothing can run on it.",
            remedy="Simulated devices are for planning: use --dry-run.",
        )
    if config.task is None or made.devices[0].kind == "cpu":
        return made
    found = None if predicted is None else predicted(config, machine, occupied)
    left_open = config.devices.strip() == "auto" or config.distributed.mode is Mode.AUTO
    if found is None and left_open:
        return replace(made, reasons=(*made.reasons, NOT_PREDICTED))
    return found or made


@contextmanager
def open_run(config: RunConfig, made: Plan, path: Path) -> Iterator[RunDirectory]:
    """The run directory at `path`, made, with config and plan in it, and held to the end.

    Raises:
        RunDirectoryError: If it cannot be written, or another process holds it.
    """
    run = RunDirectory.create(path)
    with run.held():
        run.write_config(config.model_dump(mode="json"))
        run.write_json(run.plan_path, made.as_dict())
        yield run
