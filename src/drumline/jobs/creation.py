"""A request made into a row: its config checked, its devices resolved, its values within bounds."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.config import Mode, RunConfig, parse_config
from drumline.database.tables import trainings
from drumline.errors import BadInput, ConfigError, ConfigProblem
from drumline.jobs.asked import devices_asked
from drumline.jobs.states import State
from drumline.jobs.training import Request

SCRIPT = "script"
"""What lists show as the task of a run whose model is a user's own, built by a script."""

_LONGEST = {"name": 255, "owner": 255, "idempotency_key": 255, "host": 64, "run_dir": 4096}
_BOUNDS: dict[str, tuple[float, float]] = {
    "priority": (-1_000_000, 1_000_000),
    "memory_bytes": (0, 2**50),
    "expected_s": (0, 1e9),
    "max_attempts": (1, 1_000),
}


def checked_config(config: Mapping[str, Any], *, by_hand: bool = False) -> RunConfig:
    """The config, checked as a whole. What is queued must name a task; a script brings its own.

    Raises:
        ConfigError: With every wrong key, its value and a remedy.
    """
    checked = parse_config(dict(config))
    if checked.task is None and not by_hand:
        problem = ConfigProblem("task", None, "is missing", "Name a registered task.")
        raise ConfigError("The config", [problem])
    return checked


def row_of(
    connection: Connection, request: Request, config: RunConfig, now: int, *, by_hand: bool = False
) -> dict[str, Any]:
    """The row for `request`, queued unless it is a draft.

    Raises:
        BadInput: If a value is out of bounds.
        DeviceError: If devices are asked for that are not known.
    """
    _check(request)
    name, key = request.name or config.name, request.idempotency_key
    uuids, gpus = devices_asked(connection, request, config.devices)
    state = State.DRAFT if request.draft else State.QUEUED
    return {
        "id": secrets.token_hex(6),
        "name": name[: _LONGEST["name"]],
        "task": SCRIPT if config.task is None else config.task.name[:255],
        "config": config.model_dump(mode="json"),
        "state": state.value,
        "owner": request.owner,
        "priority": request.priority,
        "idempotency_key": key,
        "by_hand": by_hand,
        "cloned_from": request.cloned_from,
        "gpu_ids": list(uuids),
        "gpus": str(gpus),
        "memory_bytes": request.memory_bytes,
        "asked_host": request.host,
        "expected_s": request.expected_s,
        "distributed": config.distributed.mode is not Mode.NONE,
        "run_dir": request.run_dir,
        "resume": False,
        "attempts_made": 0,
        "attempts_left": request.max_attempts,
        "max_attempts": request.max_attempts,
        "events_offset": 0,
        "steps": config.steps,
        "created_ms": now,
        "queued_ms": None if request.draft else now,
        "changed_ms": now,
    }


def insert_training(connection: Connection, row: Mapping[str, Any]) -> None:
    """Write the row."""
    connection.execute(sa.insert(trainings).values(**row))


def _check(request: Request) -> None:
    for field, longest in _LONGEST.items():
        value = getattr(request, field)
        if value is not None and (len(value) > longest or "\x00" in value):
            raise BadInput(
                f"{field} is too long or not plain text.",
                remedy=f"Give up to {longest} characters.",
                field=field,
            )
    for field, (least, most) in _BOUNDS.items():
        value = getattr(request, field)
        if value is not None and not least <= value <= most:
            raise BadInput(
                f"{field} = {value} is out of bounds.",
                remedy=f"Give a number from {least:g} to {most:g}.",
                field=field,
            )
