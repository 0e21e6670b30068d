"""Trainings and attempts as plain data, as the service shows them. No database here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from drumline.jobs.states import State

Gpus = int | Literal["auto", "all"]

MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class Request:
    """What a training is asked to be.

    Attributes:
        config: A whole run config as plain data; its task must be a registered one.
        owner: Who asks; whose share of the devices it counts against.
        name: By default the config's.
        gpu_ids: Devices by UUID, UUID prefix, or index on `host`.
        gpus: How many devices, "auto" or "all"; by default what the config's `devices` says. 0:
            CPU processes only.
        memory_bytes: What each device must have free; None where it is not known.
        host: The id of the only host it may run on; None: any.
        priority: Higher goes first.
        expected_s: How long it will run, as predicted; None where it is not known.
        draft: Write it down without queueing it.
        idempotency_key: A second request of the same owner with this key makes nothing new.
        max_attempts: How often it is begun before a lost lease counts as failure.
        run_dir: Its run directory; by default chosen when it first starts.
        cloned_from: The training it is a copy of.
    """

    config: Mapping[str, Any]
    owner: str = ""
    name: str | None = None
    gpu_ids: tuple[str, ...] = ()
    gpus: Gpus | None = None
    memory_bytes: int | None = None
    host: str | None = None
    priority: int = 0
    expected_s: float | None = None
    draft: bool = False
    idempotency_key: str | None = None
    max_attempts: int = MAX_ATTEMPTS
    run_dir: str | None = None
    cloned_from: str | None = None


@dataclass(frozen=True)
class Training:
    """One training as the database has it. Times are milliseconds; columns are described in
    `drumline.database.tables.trainings`.
    """

    id: str
    name: str
    task: str
    config: dict[str, Any]
    state: State
    owner: str
    priority: int
    idempotency_key: str | None
    by_hand: bool
    cloned_from: str | None
    gpu_ids: tuple[str, ...]
    gpus: Gpus
    memory_bytes: int | None
    asked_host: str | None
    expected_s: float | None
    distributed: bool
    host_id: str | None
    world_size: int | None
    run_dir: str | None
    resume: bool
    attempts_made: int
    attempts_left: int
    max_attempts: int
    stop_request: Literal["cancel", "pause"] | None
    step: int | None
    steps: int | None
    progress_ms: int | None
    events_offset: int
    verdict: str | None
    created_ms: int
    queued_ms: int | None
    started_ms: int | None
    ended_ms: int | None
    changed_ms: int
    archived_ms: int | None

    @classmethod
    def of(cls, row: Any) -> Training:
        """From a row of the table."""
        values = {field.name: getattr(row, field.name) for field in fields(cls)}
        values["state"] = State(row.state)
        values["gpu_ids"] = tuple(row.gpu_ids)
        values["gpus"] = int(row.gpus) if row.gpus.isdecimal() else row.gpus
        return cls(**values)


@dataclass(frozen=True)
class Attempt:
    """One launch of a training, past or present. Its token is not shown."""

    id: int
    training_id: str
    number: int
    host_id: str
    gpu_ids: tuple[str, ...]
    process_id: int | None
    process_started: float | None
    lease_until_ms: int
    claimed_ms: int
    running_ms: int | None
    reclaiming_ms: int | None
    ended_ms: int | None
    released_ms: int | None
    exit_cause: str | None
    exit_code: int | None
    verdict: str | None

    @classmethod
    def of(cls, row: Any) -> Attempt:
        """From a row of the table."""
        values = {field.name: getattr(row, field.name) for field in fields(cls)}
        return cls(**{**values, "gpu_ids": tuple(row.gpu_ids)})
