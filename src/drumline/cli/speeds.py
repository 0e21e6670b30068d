"""Where `plan` and `estimate` get a device's speed from: a stored profile, or a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drumline.errors import BadInput
from drumline.planning.profile import DeviceProfile, find_profile, load_profile, stored_profiles
from drumline.planning.speed import ProfiledSpeed, Speed

if TYPE_CHECKING:
    from drumline.config import RunConfig
    from drumline.hardware import Machine


def profiled(config: RunConfig, profile: DeviceProfile) -> Speed:
    """The speed of a profile, for what a trace says the config costs."""
    from drumline.bench.workload_trace import trace_workload

    task = config.task
    return ProfiledSpeed(
        trace_workload(config),
        profile,
        config.precision,
        task.granularity if task else 1,
        task.untraced if task else (),
    )


def for_estimate(
    config: RunConfig,
    counts: Sequence[int],
    machine: Machine,
    profile: str | None,
    calibrate: bool,
) -> Speed:
    """What an estimate goes by.

    Raises:
        BadInput: If there is neither a profile nor leave to time steps here.
    """
    named = None if profile is None else load_profile(profile)
    if calibrate:
        from drumline.bench.calibration import calibrate as run_calibration
        from drumline.cli.output import messages

        messages().print("Timing steps of the config on this machine.", style="dim")
        return run_calibration(config, counts, machine, profile=named)
    found = named or profile_of(machine)
    if found is None:
        raise BadInput(
            "No profile is stored for the devices of this machine.",
            remedy="Time steps here with --calibrate, or ask about another card with --profile "
            f"({', '.join(stored_profiles())}, or a YAML file).",
        )
    return profiled(config, found)


def profile_of(machine: Machine) -> DeviceProfile | None:
    """The stored profile of the machine's devices, if all are of one kind and it has one."""
    names = {device.name for device in machine.usable}
    return find_profile(next(iter(names))) if len(names) == 1 else None
