"""Trainings and their queue as the API shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from drumline.jobs.states import State
from drumline.server.views.common import Body, Plain, Time, View

CONFIG_EXAMPLE = {
    "name": "mnist-activations",
    "task": {"name": "sae", "activations": "activations/mnist", "latents": 4096},
    "global_batch": 4096,
    "steps": 10000,
}
Gpus = Annotated[int, Field(strict=True, ge=0, le=4096)] | Literal["auto", "all"]
GpuIds = Annotated[list[Plain], Field(max_length=256)]


class Asked(Body):
    """Where a config is to run."""

    gpu_ids: GpuIds = Field(
        [], description="UUIDs, beginnings of UUIDs, or indices on `host`; empty: chosen."
    )
    gpus: Gpus | None = Field(
        None,
        description="How many devices, auto or all, where `gpu_ids` is empty; null: as the "
        "config's `devices` says; 0: processes on the CPU.",
    )
    distributed: bool | None = Field(
        None,
        description="false: one device, mode none; true: spread, if the config does not say "
        "otherwise in mode auto; null: as the config says.",
    )
    host: Annotated[Plain, Field(max_length=64)] | None = Field(
        None, description="The id of the only host it may run on; null: any."
    )


class PlanTraining(Asked):
    """What is to be planned."""

    config: dict[str, Any] = Field(description="A whole run config.", examples=[CONFIG_EXAMPLE])


class CreateTraining(PlanTraining):
    """What is to be trained."""

    name: Annotated[Plain, Field(max_length=255)] | None = Field(
        None, description="What to call it; null: as the config does."
    )
    memory_bytes: int | None = Field(
        None, ge=0, le=2**50, description="What each device must have free; null: not known."
    )
    expected_s: float | None = Field(
        None, ge=0, le=1e9, description="How long it will run; null: not known."
    )
    priority: int = Field(0, ge=-1_000_000, le=1_000_000, description="Higher goes first.")
    draft: bool = Field(False, description="Write it down without queueing it.")
    max_attempts: int = Field(
        3, ge=1, le=1_000, description="How often it is begun before a lost lease is a failure."
    )


class ChangeTraining(Body):
    """What is to be changed; null leaves it."""

    name: Annotated[Plain, Field(min_length=1, max_length=255)] | None = Field(
        None, description="What to call it."
    )
    priority: int | None = Field(
        None, ge=-1_000_000, le=1_000_000, description="Higher goes first."
    )


class CloneTraining(Body):
    """What is to be different in the copy; null leaves it."""

    name: Annotated[Plain, Field(min_length=1, max_length=255)] | None = Field(
        None, description="What to call it."
    )
    config: dict[str, Any] | None = Field(None, description="Another config, whole.")
    priority: int | None = Field(
        None, ge=-1_000_000, le=1_000_000, description="Higher goes first."
    )
    draft: bool = Field(False, description="Write it down without queueing it.")


class Training(View):
    """One training."""

    id: str = Field(description="Who it is.")
    name: str = Field(description="Its name.")
    task: str = Field(description="What is trained; `script` where a user's script brings it.")
    state: State = Field(description="Where it is in its life.")
    owner: str = Field(description="The name of the token that made it.")
    priority: int = Field(description="Higher goes first.")
    by_hand: bool = Field(description="Whether it was started outside the queue.")
    cloned_from: str | None = Field(description="The training it is a copy of.")
    asked_gpu_ids: list[str] = Field(description="UUIDs asked for; empty: chosen.")
    asked_gpus: int | Literal["auto", "all"] = Field(description="How many devices are asked for.")
    asked_host: str | None = Field(description="The only host it may run on; null: any.")
    memory_bytes: int | None = Field(description="What each device must have free.")
    expected_s: float | None = Field(description="How long it is predicted to run.")
    distributed: bool = Field(description="Whether it is spread over several devices.")
    host: str | None = Field(description="The host it runs on, or last did.")
    gpu_ids: list[str] = Field(description="UUIDs of the devices it holds now.")
    world_size: int | None = Field(description="How many devices it was given, 1 on the CPU.")
    run_dir: str | None = Field(description="Its run directory on the host.")
    attempts: int = Field(description="How many attempts were made.")
    max_attempts: int = Field(description="How many may be.")
    stop_request: Literal["cancel", "pause"] | None = Field(
        description="What it was asked to do and has not done yet."
    )
    step: int | None = Field(description="The optimizer step reached.")
    steps: int | None = Field(description="How many there will be, where that is known.")
    progress: float | None = Field(description="The part that is done, from 0 to 1.")
    verdict: str | None = Field(description="How it ended or why it stands, in words.")
    archived: bool = Field(description="Whether it is put away.")
    created: Time = Field(description="When it was made.")
    queued: Time | None = Field(description="When it was last queued.")
    started: Time | None = Field(description="When it first ran.")
    ended: Time | None = Field(description="When it ended.")
    changed: Time = Field(description="When anything of this last changed.")


class Attempt(View):
    """One launch of all ranks of a training."""

    number: int = Field(description="From 1.")
    host: str = Field(description="Where.")
    gpu_ids: list[str] = Field(description="On which devices; empty: processes on the CPU.")
    claimed: Time = Field(description="When it was given its devices.")
    running: Time | None = Field(description="When its ranks were there.")
    ended: Time | None = Field(description="When it ended.")
    released: Time | None = Field(description="When its devices were given back.")
    lease_until: Time = Field(description="Until when its lease holds without a heartbeat.")
    exit_cause: str | None = Field(description="How it ended, for programs.")
    exit_code: int | None = Field(description="The exit code of its launcher.")
    verdict: str | None = Field(description="How it ended, in words.")


class MetricValue(View):
    """The last value of a metric."""

    step: int = Field(description="The optimizer step.")
    time: Time = Field(description="When it was logged.")
    value: float | None = Field(description="The value; null where it was not finite.")


class Wait(View):
    """Why a training waits."""

    training_id: str = Field(description="Which training.")
    name: str = Field(description="Its name.")
    owner: str = Field(description="Whose it is.")
    priority: int = Field(description="Its priority.")
    queued: Time = Field(description="Since when it waits.")
    position: int = Field(description="Its place in the queue, from 1.")
    code: Literal["next", "devices", "held_back", "behind", "draining", "impossible", "no_host"] = (
        Field(
            description="next: starts at its host's next look; devices: too few are free; "
            "held_back: enough are free, but kept for one before it; "
            "behind: those before it come first; draining: its last attempt still "
            "holds devices; "
            "impossible: no host can ever give what it asks for; no_host: none is there."
        )
    )
    reason: str = Field(description="The same in words, with numbers and names.")
    may_start: Time | None = Field(description="When it may start; null where that is not known.")
    unknown: str = Field(description="Why that is not known, in words; empty where it is.")
    host: str | None = Field(description="Where it may start.")


class TrainingDetail(Training):
    """One training with all that is known of it."""

    config: dict[str, Any] = Field(description="Its whole config.")
    attempt_list: list[Attempt] = Field(description="All attempts, the first first.")
    metrics: dict[str, MetricValue] = Field(description="The last value of each metric.")
    wait: Wait | None = Field(description="Why it waits; null where it does not.")


class Trainings(View):
    """Part of a list of trainings."""

    items: list[Training] = Field(description="The newest first.")
    next_cursor: str | None = Field(description="Gives the next part; null at the end.")


class Queue(View):
    """All trainings that wait, the next one first."""

    items: list[Wait] = Field(description="In the order of the queue.")
    hosts: int = Field(description="How many hosts can be counted on.")


class MetricPoint(View):
    """A metric over a stretch of steps."""

    step: int = Field(description="The last step of the stretch.")
    time: Time = Field(description="When that was logged.")
    mean: float | None = Field(description="Mean; null where no value was finite.")
    least: float | None = Field(description="The lowest value.")
    most: float | None = Field(description="The highest value.")
    count: int = Field(description="How many values there are.")
    not_finite: int = Field(description="How many values were not finite.")


class TrainingMetrics(View):
    """Metrics of a training by name."""

    metrics: dict[str, list[MetricPoint]] = Field(description="Points in order of their steps.")


class Event(View):
    """A line of a run's event log."""

    offset: int = Field(description="The byte of the log at which it begins.")
    time: Time = Field(description="When it happened.")
    kind: str = Field(description="What happened; kinds are listed in docs/events.md.")
    event: dict[str, Any] = Field(description="The whole line.")


class Events(View):
    """Part of a run's event log."""

    items: list[Event] = Field(description="In order.")
    after: int = Field(description="Ask for what comes `after` this to go on; -1 at the beginning.")


class LogFile(View):
    """One log of a run."""

    name: str = Field(description="Its name: rank-0.log, or launcher.log.")
    rank: int | None = Field(description="The rank it is of, if it is of one.")
    bytes: int = Field(description="How long it is.")


class Logs(View):
    """The logs that a run has."""

    logs: list[LogFile] = Field(description="Ranks first.")


class LogTail(View):
    """Part of a log."""

    name: str = Field(description="Of which log.")
    text: str = Field(description="The part; bytes that are no UTF-8 are replaced.")
    offset: int = Field(description="The byte at which the part begins.")
    next_offset: int = Field(description="Ask with this `offset` for what comes after.")
    bytes: int = Field(description="How long the log is now.")


class Artifact(View):
    """A file that a run has made."""

    path: str = Field(description="Its place in the run directory.")
    kind: Literal["checkpoint", "export", "plot", "table", "record", "other"] = Field(
        description="What it is, by its place and ending; record: config, plan, events, result."
    )
    bytes: int = Field(description="How long it is.")
    modified: Time = Field(description="When it was last written.")


class Artifacts(View):
    """The files that a run has made, logs excepted."""

    artifacts: list[Artifact] = Field(description="By path.")
    complete: bool = Field(description="Whether these are all; lists end at 10,000 files.")
