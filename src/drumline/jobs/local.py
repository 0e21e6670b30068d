"""Devices for a run that is started by hand: planned, then held until the run has ended.

Every run on a machine locks its devices by file, those of the service too, so that nobody needs a
service for not being disturbed. Where the machine has one, the run is also entered there (see
`jobs.by_hand`). A plan of CPU processes holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drumline.config import RunConfig
from drumline.errors import DeviceError
from drumline.hardware.device_locks import DeviceLocks, DeviceTaken, held_on, lock_folder
from drumline.launch.preflight import plan_here, visible_machine
from drumline.planning import Plan

_TRIES = 8
"""Plans that others may upset, by taking a device between looking and taking, before giving up."""


@dataclass(frozen=True)
class Held:
    """A plan whose devices this process holds. `locks` are for the ranks, to hold them too."""

    plan: Plan
    locks: tuple[Path, ...] = ()


def plan_beside_others(config: RunConfig) -> Plan:
    """The plan of a config on the devices that are free now. Nothing is held.

    Raises:
        DeviceError: If the devices asked for are not there or not free, with who holds them.
        BadInput: If the config cannot be spread over them, or names what is not there.
    """
    machine = visible_machine()
    return plan_here(config, machine, held_on(machine))


@contextmanager
def devices_for(config: RunConfig, run_path: Path) -> Iterator[Held]:
    """Plan a config and hold its devices within.

    Args:
        config: A checked config.
        run_path: Its run directory, named to others who want the devices.

    Raises:
        DeviceError: As `plan_beside_others`.
        BadInput: Likewise.
    """
    made, locks = _claimed(config)
    with locks:
        locks.tell(run_path.absolute())
        yield Held(made, tuple(locks.paths))


def _claimed(config: RunConfig) -> tuple[Plan, DeviceLocks]:
    for _ in range(_TRIES):
        made = plan_beside_others(config)
        uuids = [device.uuid for device in made.devices if device.uuid]
        folder = lock_folder() if uuids else Path()
        try:
            return made, DeviceLocks(folder, uuids)
        except DeviceTaken as taken:  # between looking and taking: plan again, without it
            last = taken
    raise DeviceError(
        f"Device {last.uuid} was free and is now held by {last.holder}.",
        remedy="Others are taking devices at this moment: try again.",
        uuid=last.uuid,
    )
