"""Where `estimate` gets a device's speed from: a stored profile, or a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drumline.errors import BadInput
from drumline.planning.profile import load_profile, stored_profiles
from drumline.planning.speed import Speed

if TYPE_CHECKING:
    from drumline.config import RunConfig
    from drumline.hardware import Machine


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
        DeviceError: If steps are to be timed, and no device is free.
    """
    from drumline.bench.memory import TracingProcess
    from drumline.bench.trace_store import users_store
    from drumline.bench.traces import Traces
    from drumline.bench.whole_plan import profile_of, profiled

    named = None if profile is None else load_profile(profile)
    if calibrate:
        from drumline.bench.calibration import calibrate as run_calibration
        from drumline.cli.output import messages
        from drumline.hardware.device_locks import held_on

        messages().print("Timing steps of the config on this machine.", style="dim")
        return run_calibration(config, counts, machine, held_on(machine), profile=named)
    found = named or profile_of(machine)
    if found is None:
        raise BadInput(
            "No profile is stored for the devices of this machine.",
            remedy="Time steps here with --calibrate, or ask about another card with --profile "
            f"({', '.join(stored_profiles())}, or a YAML file).",
        )
    with TracingProcess() as process:
        return profiled(config, found, Traces(users_store(), process))
