"""The trainings of the service: made, read, listed, cancelled, resumed, copied, put away, deleted.

Each is one short transaction. What supervisors write is `jobs.outcome`, who gets devices when is
`jobs.queue` and `jobs.leases`, what trainings report is `jobs.reports`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from drumline.config import Mode, RunConfig, parse_config
from drumline.database import Database, now_ms
from drumline.database.tables import (
    attempts,
    reservations,
    training_events,
    training_metrics,
    trainings,
)
from drumline.errors import ConfigError, ConfigProblem
from drumline.jobs.asked import devices_asked
from drumline.jobs.errors import IdempotencyConflict, UnknownTraining, WrongState
from drumline.jobs.listing import Filter, Page, read_page
from drumline.jobs.moves import move
from drumline.jobs.states import ACTIVE, ENDED, State
from drumline.jobs.training import Attempt, Request, Training


class Trainings:
    """All trainings of one database."""

    def __init__(self, database: Database, clock: Callable[[], int] = now_ms) -> None:
        self._database = database
        self._clock = clock

    def create(self, request: Request) -> Training:
        """Check a request and write it down, queued unless it is a draft.

        Raises:
            ConfigError: If the config cannot be used.
            DeviceError: If devices are asked for that are not known.
            IdempotencyConflict: If the key was used for something else.
        """
        config = _checked(request.config)
        try:
            with self._database.writing() as connection:
                row = _row(connection, request, config, self._clock())
                connection.execute(sa.insert(trainings).values(**row))
                return _get(connection, row["id"])
        except IntegrityError:
            return self._made_before(request, row)

    def _made_before(self, request: Request, row: Mapping[str, Any]) -> Training:
        with self._database.reading() as connection:
            query = sa.select(trainings).where(
                trainings.c.owner == request.owner,
                trainings.c.idempotency_key == request.idempotency_key,
            )
            before = Training.of(connection.execute(query).one())
        same = (before.config, list(before.gpu_ids), str(before.gpus), before.name)
        if same != (row["config"], row["gpu_ids"], row["gpus"], row["name"]):
            raise IdempotencyConflict(str(request.idempotency_key), before.id)
        return before

    def get(self, training_id: str) -> Training:
        """One training.

        Raises:
            UnknownTraining: If there is none of that id.
        """
        with self._database.reading() as connection:
            return _get(connection, training_id)

    def attempts(self, training_id: str) -> tuple[Attempt, ...]:
        """All attempts of a training, the first first.

        Raises:
            UnknownTraining: If there is none of that id.
        """
        with self._database.reading() as connection:
            _get(connection, training_id)
            query = (
                sa.select(attempts)
                .where(attempts.c.training_id == training_id)
                .order_by(attempts.c.number)
            )
            return tuple(Attempt.of(row) for row in connection.execute(query))

    def list(
        self, wanted: Filter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page:
        """Trainings, the newest first, `limit` at a time.

        Raises:
            BadInput: If the cursor is not one that a list gave.
        """
        with self._database.reading() as connection:
            return read_page(connection, wanted or Filter(), limit, cursor)

    def enqueue(self, training_id: str) -> Training:
        """Queue a draft.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it is no draft.
        """
        return self._queue(training_id, "queued", {State.DRAFT}, resume=False)

    def cancel(self, training_id: str) -> Training:
        """Cancel: at once where it does not run, else by asking its supervisor. Twice is as once.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it has ended.
        """
        return self._stop(training_id, "cancel", State.CANCELLED, "cancelled")

    def pause(self, training_id: str) -> Training:
        """Take it out of the queue, or have it save and stop; `resume` goes on.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it has ended or is a draft.
        """
        return self._stop(training_id, "pause", State.PAUSED, "paused")

    def resume(self, training_id: str) -> Training:
        """Queue it again, to go on from its last checkpoint.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it is not paused, failed or cancelled.
        """
        states = {State.PAUSED, State.FAILED, State.CANCELLED}
        return self._queue(training_id, "resumed", states, resume=trainings.c.attempts_made > 0)

    def retry(self, training_id: str) -> Training:
        """Queue it again, to begin anew in a new run directory.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it has not failed and was not cancelled.
        """
        states = {State.FAILED, State.CANCELLED}
        return self._queue(training_id, "retried", states, anew=True, resume=False)

    def clone(self, training_id: str, **changes: Any) -> Training:
        """A new training like this one, with fields of `Request` changed.

        Raises:
            UnknownTraining: If there is none of that id.
            ConfigError: If a changed config cannot be used.
        """
        source = self.get(training_id)
        like = Request(
            config=source.config,
            owner=source.owner,
            name=source.name,
            gpu_ids=source.gpu_ids,
            gpus=source.gpus,
            memory_bytes=source.memory_bytes,
            host=source.asked_host,
            priority=source.priority,
            expected_s=source.expected_s,
            max_attempts=source.max_attempts,
            cloned_from=source.id,
        )
        return self.create(replace(like, **changes))

    def archive(self, training_id: str, *, archived: bool = True) -> Training:
        """Take an ended training out of lists, or put it back.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it has not ended.
        """
        now = self._clock()
        with self._database.writing() as connection:
            changed = connection.execute(
                sa.update(trainings)
                .where(trainings.c.id == training_id, trainings.c.state.in_(_values(ENDED)))
                .values(archived_ms=now if archived else None, changed_ms=now)
            ).rowcount
            training = _get(connection, training_id)
            if not changed:
                raise WrongState(training_id, training.state, "archived", _values(ENDED))
            return training

    def delete(self, training_id: str) -> None:
        """Forget an ended training or a draft, with all it reported. Its files stay.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it may still run, or its devices are not given back yet.
        """
        allowed = [*_values(ENDED), State.DRAFT.value]
        with self._database.writing() as connection:
            locked = sa.select(trainings).where(trainings.c.id == training_id).with_for_update()
            row = connection.execute(locked).one_or_none()
            if row is None:
                raise UnknownTraining(training_id)
            held = sa.select(attempts.c.id).where(
                attempts.c.training_id == training_id, attempts.c.released_ms.is_(None)
            )
            if row.state not in allowed or connection.execute(held).first():
                raise WrongState(training_id, row.state, "deleted", allowed)
            for table in (*_REPORTED, reservations, attempts):
                connection.execute(sa.delete(table).where(table.c.training_id == training_id))
            connection.execute(sa.delete(trainings).where(trainings.c.id == training_id))

    def _queue(
        self,
        training_id: str,
        asked: str,
        only_from: set[State],
        *,
        resume: Any,
        anew: bool = False,
    ) -> Training:
        now = self._clock()
        values = {**_FRESH, "queued_ms": now, "resume": resume, **(_ANEW if anew else {})}
        with self._database.writing() as connection:
            moved = move(connection, training_id, State.QUEUED, now, only_from=only_from, **values)
            training = _get(connection, training_id)
            if not moved:
                raise WrongState(training_id, training.state, asked, _values(only_from))
            for table in _REPORTED if anew else ():
                connection.execute(sa.delete(table).where(table.c.training_id == training_id))
            return training

    def _stop(self, training_id: str, request: str, rest: State, asked: str) -> Training:
        """To `rest` at once where no attempt is; else the flag that its supervisor reads."""
        now = self._clock()
        with self._database.writing() as connection:
            if move(connection, training_id, rest, now, only_from=_AT_REST, verdict=_BY_USER[rest]):
                connection.execute(
                    sa.delete(reservations).where(reservations.c.training_id == training_id)
                )
                return _get(connection, training_id)
            update = sa.update(trainings).where(
                trainings.c.id == training_id, trainings.c.state.in_(_values(ACTIVE))
            )
            if request == "pause":  # a cancel is not taken back by a later pause
                update = update.where(sa.func.coalesce(trainings.c.stop_request, "") != "cancel")
            connection.execute(update.values(stop_request=request, changed_ms=now))
            training = _get(connection, training_id)
            if training.state not in ACTIVE and training.state is not rest:
                allowed = _values(ACTIVE | _AT_REST)
                raise WrongState(training_id, training.state, asked, allowed)
            return training


_REPORTED = (training_metrics, training_events)
_FRESH = {
    "attempts_left": trainings.c.max_attempts,
    "stop_request": None,
    "verdict": None,
    "archived_ms": None,
}
_ANEW = {
    "run_dir": None,
    "events_offset": 0,
    "step": None,
    "progress_ms": None,
    "started_ms": None,
}
_AT_REST = frozenset({State.DRAFT, State.QUEUED, State.PAUSED})
_BY_USER = {
    State.CANCELLED: "cancelled before it ran",
    State.PAUSED: "paused while it waited",
}


def _checked(config: Mapping[str, Any]) -> RunConfig:
    checked = parse_config(dict(config))
    if checked.task is None:
        problem = ConfigProblem("task", None, "is missing", "Name a registered task.")
        raise ConfigError("The config", [problem])
    return checked


def _row(connection: Connection, request: Request, config: RunConfig, now: int) -> dict[str, Any]:
    assert config.task is not None
    uuids, gpus = devices_asked(connection, request, config.devices)
    state = State.DRAFT if request.draft else State.QUEUED
    return {
        "id": secrets.token_hex(6),
        "name": request.name or config.name,
        "task": config.task.name,
        "config": config.model_dump(mode="json"),
        "state": state.value,
        "owner": request.owner,
        "priority": request.priority,
        "idempotency_key": request.idempotency_key,
        "by_hand": False,
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


def _get(connection: Connection, training_id: str) -> Training:
    query = sa.select(trainings).where(trainings.c.id == training_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise UnknownTraining(training_id)
    return Training.of(row)


def _values(states: Collection[State]) -> list[str]:
    return sorted(state.value for state in states)
