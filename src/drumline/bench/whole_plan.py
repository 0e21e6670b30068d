"""A plan with all that can be told before a run: step times where a profile is stored, memory where
the task can be traced, the batch in words. What `drumline plan` and the service's plans both show.

Tracing imports torch, here and in a process of its own, and takes seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from drumline.bench.memory import MemoryAnswers, TracingProcess
from drumline.config import Mode, RunConfig
from drumline.errors import DrumlineError, LaunchError
from drumline.hardware import Machine
from drumline.planning import Plan, plan
from drumline.planning.batch import Batch, LearningRate, cut_batch, learning_rates
from drumline.planning.profile import DeviceProfile, find_profile, load_profile
from drumline.planning.speed import ProfiledSpeed, Speed


@dataclass(frozen=True)
class WholePlan:
    """A plan and what goes with it.

    Attributes:
        plan: The plan itself.
        batch: How the global batch is cut, in words.
        rates: Learning rates for another batch than the config's, by rule; shown, not applied.
        missing: What could not be predicted, and why.
    """

    plan: Plan
    batch: Batch
    rates: tuple[LearningRate, ...]
    missing: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            **self.plan.as_dict(),
            "batch": self.batch.as_dict(),
            "learning_rates": {rate.rule: rate.lr for rate in self.rates},
            "missing": list(self.missing),
        }


def whole_plan(
    config: RunConfig,
    machine: Machine,
    occupied: Collection[str] = (),
    *,
    profile: str | None = None,
    batch_before: int | None = None,
) -> WholePlan:
    """Plan a config on a machine, and predict what can be predicted.

    Args:
        config: A checked config.
        machine: What is there.
        occupied: UUIDs of devices that somebody else holds.
        profile: What the devices can do, by name or file; by default by their name.
        batch_before: The global batch that the config's learning rate was chosen for.

    Raises:
        DeviceError: If the devices asked for are not there, not free or too small.
        BadInput: If the config cannot be spread over them, or names what is not there.
    """
    if config.task is not None:
        config.task.check()
    first = plan(
        config, machine, occupied
    )  # what cannot be planned is said before anything is traced
    speed, no_speed = _speed(config, machine, profile)
    with TracingProcess() as tracer:
        answers, no_memory = _memory(config, len(first.devices), tracer)
        made = plan(config, machine, occupied, speed=speed, memory=answers)
    granularity = config.task.granularity if config.task else 1
    before = batch_before or config.global_batch
    return WholePlan(
        made,
        cut_batch(made.shares, made.micro_batch, granularity),
        learning_rates(config.optimizer.lr, before, config.global_batch),
        tuple(line for line in (no_speed, no_memory) if line is not None),
    )


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


def profile_of(machine: Machine) -> DeviceProfile | None:
    """The stored profile of the machine's devices, if all are of one kind and it has one."""
    names = {device.name for device in machine.usable}
    return find_profile(next(iter(names))) if len(names) == 1 else None


def _speed(
    config: RunConfig, machine: Machine, profile: str | None
) -> tuple[Speed | None, str | None]:
    """The speed to plan by, or why there is none."""
    chosen = profile_of(machine) if profile is None else load_profile(profile)
    on_cpu = config.devices.strip().startswith("cpu")
    if config.task is None or chosen is None or (on_cpu and profile is None):
        return None, "no step times: no profile is stored for these devices"
    try:
        return profiled(config, chosen), None
    except LaunchError as error:
        return None, f"no step times: {error.message}"


def _memory(
    config: RunConfig, devices: int, tracer: TracingProcess
) -> tuple[MemoryAnswers | None, str | None]:
    """What answers for the config's memory, or why nothing does."""
    if config.task is None:
        return None, "no memory estimate: the config names no task whose step could be traced"
    answers = MemoryAnswers(config, tracer)
    try:
        # Whether it can be traced at all; a mesh only on as many devices as it has places.
        answers.need(devices if config.distributed.mode is Mode.HYBRID else 1, None)
    except DrumlineError as error:
        return None, f"no memory estimate: {error.message}"
    return answers, None
