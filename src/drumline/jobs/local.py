"""Devices for a run that is started by hand: planned, then held until the run has ended.

Every run on a machine locks its devices by file, those of the service too, so that nobody needs a
service for not being disturbed. Where the machine has one, the run is also entered there (see
`jobs.by_hand`). A plan of CPU processes holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drumline.bench.whole_plan import kept_plan
from drumline.config import RunConfig
from drumline.config.environment import has_service
from drumline.errors import DeviceError
from drumline.hardware import Machine
from drumline.hardware.device_locks import DeviceLocked, DeviceLocks, held_on, lock_folder
from drumline.launch.preflight import Predicted, plan_here, visible_machine
from drumline.planning import Plan
from drumline.run_directory import RunDirectory

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
    return plan_here(config, machine, held_on(machine), _predicted(config.run_dir))


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
    run_path = run_path.absolute()
    with ExitStack() as holding:
        yield _taken(config, run_path, holding)


def _taken(config: RunConfig, run_path: Path, holding: ExitStack) -> Held:
    leased: dict[str, object] = {}
    for _ in range(_TRIES):
        machine = visible_machine()
        held = {**leased, **held_on(machine)}
        made = plan_here(config, machine, held, _predicted(run_path))
        uuids = [device.uuid for device in made.devices if device.uuid]
        if not uuids:
            return Held(made)
        try:
            locks = DeviceLocks(lock_folder(), uuids)
        except DeviceLocked as taken:  # between looking and taking: plan again, without it
            last = str(taken)
            continue
        locks.tell(run_path)
        with ExitStack() as taking:
            taking.enter_context(locks)
            leased |= _enter(config, machine, uuids, run_path, taking)
            if not leased.keys() & set(uuids):
                holding.push(taking.pop_all())
                return Held(made, tuple(locks.paths))
        last = ", ".join(f"{uuid} is held by {leased[uuid]}" for uuid in uuids if uuid in leased)
    raise DeviceError(
        f"Devices that were free are taken now: {last}.",
        remedy="Others are taking devices at this moment: try again.",
    )


def _predicted(run_path: Path | None) -> Predicted:
    """Plans as `drumline plan` has, where it was asked before."""
    begun = run_path is not None and RunDirectory(run_path).config_path.exists()
    return partial(kept_plan, begun=begun)


def _enter(
    config: RunConfig, machine: Machine, uuids: Sequence[str], run_path: Path, holding: ExitStack
) -> dict[str, object]:
    """Enter the run in the service, if the machine has one; devices that are taken there."""
    if not has_service():
        return {}
    try:
        from drumline.jobs.by_hand import entered
        from drumline.jobs.errors import DeviceTaken
    except ModuleNotFoundError:  # the service is another installation's; the lock files hold
        return {}
    try:
        holding.enter_context(entered(config, machine, uuids, run_path))
    except DeviceTaken as taken:
        return dict(taken.values["devices"])
    return {}
