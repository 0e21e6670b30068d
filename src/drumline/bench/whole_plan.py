"""A plan with all that can be told before a run: step times where a profile is stored, memory where
the task can be traced, the batch in words. What `drumline plan` and the service's plans both show.

Tracing takes seconds, in processes of their own; what was traced is kept, so that the next who
plans the same, a training among them, need not wait. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from drumline.bench.memory import MemoryAnswers, TracingProcess
from drumline.bench.trace_store import users_store
from drumline.bench.traces import Traces
from drumline.config import Mode, RunConfig
from drumline.config.environment import CACHE_FOLDER
from drumline.errors import DeviceError, DrumlineError, LaunchError
from drumline.hardware import Machine
from drumline.planning import Plan, plan
from drumline.planning.batch import Batch, LearningRate, cut_batch, learning_rates
from drumline.planning.memory_fit import NotKnown
from drumline.planning.profile import DeviceProfile, find_profile, load_profile
from drumline.planning.profiled_speed import ProfiledSpeed
from drumline.planning.speed import Speed

PREDICTED_BEFORE = "predicted from what `drumline plan` has traced for this config before"
ALL_THE_SAME = "planned without predictions, as the run has begun; by those made before"
UNPREDICTED = f"Or start it without predictions: {CACHE_FOLDER}=/dev/null drumline train …"


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
    with TracingProcess() as process:
        traces = Traces(users_store(), process)
        made, missing = _predicted(config, machine, occupied, traces, profile)
    granularity = config.task.granularity if config.task else 1
    before = batch_before or config.global_batch
    return WholePlan(
        made,
        cut_batch(made.shares, made.micro_batch, granularity),
        learning_rates(config.optimizer.lr, before, config.global_batch),
        missing,
    )


def kept_plan(
    config: RunConfig, machine: Machine, occupied: Collection[str] = (), *, begun: bool = False
) -> Plan | None:
    """The plan of `whole_plan`, from what was traced before alone: nothing is traced.

    Args:
        config: A checked config.
        machine: What is there.
        occupied: UUIDs of devices that somebody else holds.
        begun: The run has begun. Then no prediction refuses it: it may have found smaller
            micro-batches by itself, and nobody may be there to answer.

    Returns:
        The plan; None if something it asks for was not traced before.

    Raises:
        DeviceError: As `whole_plan`.
        BadInput: Likewise.
    """
    if config.task is None:
        return None
    try:
        made, missing = _predicted(config, machine, occupied, Traces(users_store(), None))
    except NotKnown:
        return None
    except DeviceError as error:
        if not begun:
            error.remedy = f"{error.remedy} {UNPREDICTED}".strip()
            raise
        made = plan(config, machine, occupied)
        return replace(made, reasons=(*made.reasons, f"{ALL_THE_SAME}: {error.message}"))
    return replace(made, reasons=(*made.reasons, PREDICTED_BEFORE, *missing))


def profiled(config: RunConfig, profile: DeviceProfile, traces: Traces) -> Speed:
    """The speed of a profile, for what a trace says the config costs."""
    task = config.task
    return ProfiledSpeed(
        traces.workload(config),
        profile,
        config.precision,
        task.granularity if task else 1,
        task.untraced if task else (),
    )


def profile_of(machine: Machine) -> DeviceProfile | None:
    """The stored profile of the machine's devices, if all are of one kind and it has one."""
    names = {device.name for device in machine.usable}
    return find_profile(next(iter(names))) if len(names) == 1 else None


def _predicted(
    config: RunConfig,
    machine: Machine,
    occupied: Collection[str],
    traces: Traces,
    profile: str | None = None,
) -> tuple[Plan, tuple[str, ...]]:
    """The plan with all that can be predicted, and what could not be."""
    # What cannot be planned is said before anything is traced.
    first = plan(config, machine, occupied)
    speed, no_speed = _speed(config, machine, profile, traces)
    answers, no_memory = _memory(config, len(first.devices), traces)
    made = plan(config, machine, occupied, speed=speed, memory=answers)
    return made, tuple(line for line in (no_speed, no_memory) if line is not None)


def _speed(
    config: RunConfig, machine: Machine, profile: str | None, traces: Traces
) -> tuple[Speed | None, str | None]:
    """The speed to plan by, or why there is none."""
    chosen = profile_of(machine) if profile is None else load_profile(profile)
    on_cpu = config.devices.strip().startswith("cpu")
    if config.task is None or chosen is None or (on_cpu and profile is None):
        return None, "no step times: no profile is stored for these devices"
    try:
        return profiled(config, chosen, traces), None
    except LaunchError as error:
        return None, f"no step times: {error.message}"


def _memory(
    config: RunConfig, devices: int, traces: Traces
) -> tuple[MemoryAnswers | None, str | None]:
    """What answers for the config's memory, or why nothing does."""
    if config.task is None:
        return None, "no memory estimate: the config names no task whose step could be traced"
    answers = MemoryAnswers(config, traces.memory)
    try:
        # Whether it can be traced at all; a mesh only on as many devices as it has places.
        answers.need(devices if config.distributed.mode is Mode.HYBRID else 1, None)
    except DrumlineError as error:
        return None, f"no memory estimate: {error.message}"
    return answers, None
