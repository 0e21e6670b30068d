"""What happens on the launching machine before ranks start: look, plan, make the run directory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
    "predicts both, and may find that fewer devices are as fast"
)


def visible_machine() -> Machine:
    """This machine, with only the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    machine = Machine.probe()
    setting, order = visible_devices_setting()
    if setting is None:
        return machine
    return replace(machine, devices=tuple(visible_devices(machine.devices, setting, order).devices))


def plan_here(
    config: RunConfig, machine: Machine | None = None, occupied: Collection[str] = ()
) -> Plan:
    """The plan of a config on this machine.

    Args:
        config: A checked config.
        machine: What is there; by default it is looked at.
        occupied: UUIDs of devices that others hold; a mapping says who they are.

    Raises:
        DeviceError: If the devices asked for are not there, not free, or only simulated.
        BadInput: If the config cannot be spread over them, or names what is not there.
    """
    if config.task is not None:
        config.task.check()
    made = plan(config, machine or visible_machine(), occupied)
    simulated = [device for device in made.devices if device.simulated]
    if simulated:
        raise DeviceError(
            f"{simulated[0].name} is simulated; nothing can run on it.",
            remedy="Simulated devices are for planning: use --dry-run.",
        )
    left_open = config.devices.strip() == "auto" or config.distributed.mode is Mode.AUTO
    if config.task is not None and left_open and made.devices[0].kind != "cpu":
        made = replace(made, reasons=(*made.reasons, NOT_PREDICTED))
    return made


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
