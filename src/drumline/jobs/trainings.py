"""The trainings of the service: made, read, listed, cancelled, resumed, copied, put away, deleted.

Each is one short transaction. What supervisors write is `jobs.outcome`, who gets devices when is
`jobs.queue` and `jobs.leases`, what trainings report is `jobs.reports`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from drumline.database import Database, now_ms
from drumline.database.tables import (
    attempts,
    reservations,
    training_events,
    training_metrics,
    trainings,
)
from drumline.errors import BadInput
from drumline.jobs.creation import SCRIPT, checked_config, insert_training, row_of
from drumline.jobs.errors import IdempotencyConflict, UnknownTraining, WrongState
from drumline.jobs.listing import Filter, Page, read_page
from drumline.jobs.moves import move
from drumline.jobs.reports import Reports, forget_some
from drumline.jobs.states import ACTIVE, ENDED, State, before
from drumline.jobs.training import Attempt, Request, Training


class Trainings:
    """All trainings of one database. `reports` has their metrics and events."""

    def __init__(self, database: Database, clock: Callable[[], int] = now_ms) -> None:
        self.reports = Reports(database, clock)
        self._database = database
        self._clock = clock

    def create(self, request: Request) -> Training:
        """Check a request and write it down, queued unless it is a draft.

        Raises:
            ConfigError: If the config cannot be used.
            BadInput: If another value cannot be used.
            DeviceError: If devices are asked for that are not known.
            IdempotencyConflict: If the key was used for something else.
        """
        config = checked_config(request.config)
        try:
            with self._database.writing() as connection:
                row = row_of(connection, request, config, self._clock())
                insert_training(connection, row)
                return _get(connection, row["id"])
        except IntegrityError:
            if request.idempotency_key is None:
                raise
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

    def some(self, training_ids: Collection[str]) -> list[Training]:
        """The trainings of these ids, those that there are, in any order."""
        query = sa.select(trainings).where(trainings.c.id.in_(sorted(training_ids)))
        with self._database.reading() as connection:
            return [Training.of(row) for row in connection.execute(query)]

    def change(
        self, training_id: str, *, name: str | None = None, priority: int | None = None
    ) -> Training:
        """Call it something else, or have it go before or behind others. None leaves what is.

        Raises:
            UnknownTraining: If there is none of that id.
        """
        given = {"name": name, "priority": priority}
        values = {key: value for key, value in given.items() if value is not None}
        with self._database.writing() as connection:
            _get(connection, training_id, lock=True)
            connection.execute(
                sa.update(trainings)
                .where(trainings.c.id == training_id)
                .values(**values, changed_ms=self._clock())
            )
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

    def changed_since(self, changed_ms: int, *, limit: int = 500) -> Sequence[Training]:
        """Trainings that changed at or after a time, the earliest change first.

        For followers: ask again from the last change seen. Clocks of several hosts differ, so go
        back a little, and expect to see the same training again.
        """
        query = (
            sa.select(trainings)
            .where(trainings.c.changed_ms >= changed_ms)
            .order_by(trainings.c.changed_ms, trainings.c.id)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [Training.of(row) for row in connection.execute(query)]

    def counts(self) -> dict[State, int]:
        """How many trainings are in each state, archived ones left out."""
        query = (
            sa.select(trainings.c.state, sa.func.count())
            .where(trainings.c.archived_ms.is_(None))
            .group_by(trainings.c.state)
        )
        with self._database.reading() as connection:
            found = {State(state): count for state, count in connection.execute(query)}
        return {state: found.get(state, 0) for state in State}

    def enqueue(self, training_id: str) -> Training:
        """Queue a draft.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it is no draft.
        """
        return self._queue(training_id, "queued", frozenset({State.DRAFT}))

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
        states = frozenset({State.PAUSED, State.FAILED, State.CANCELLED})
        return self._queue(training_id, "resumed", states, resume=trainings.c.attempts_made > 0)

    def retry(self, training_id: str) -> Training:
        """Queue it again, to begin anew in a new run directory.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it has not failed and was not cancelled.
        """
        states = frozenset({State.FAILED, State.CANCELLED})
        self._forget_reports(training_id, "retried", states)
        return self._queue(training_id, "retried", states, **_ANEW)

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
            training = _get(connection, training_id, lock=True)
            if training.state not in ENDED:
                raise WrongState(training_id, training.state, "archived", _values(ENDED))
            connection.execute(
                sa.update(trainings)
                .where(trainings.c.id == training_id)
                .values(archived_ms=now if archived else None, changed_ms=now)
            )
            return _get(connection, training_id)

    def delete(self, training_id: str) -> None:
        """Forget an ended training or a draft, with all it reported. Its files stay.

        Raises:
            UnknownTraining: If there is none of that id.
            WrongState: If it may still run, or its devices are not given back yet.
        """
        allowed = ENDED | {State.DRAFT}
        self._forget_reports(training_id, "deleted", allowed)
        with self._database.writing() as connection:
            _at_rest(connection, training_id, "deleted", allowed)
            for table in (training_metrics, training_events, reservations, attempts):
                connection.execute(sa.delete(table).where(table.c.training_id == training_id))
            connection.execute(sa.delete(trainings).where(trainings.c.id == training_id))

    def _forget_reports(self, training_id: str, asked: str, allowed: frozenset[State]) -> None:
        """Many rows, so in short transactions."""
        more = True
        while more:
            with self._database.writing() as connection:
                _at_rest(connection, training_id, asked, allowed)
                more = forget_some(connection, training_id)

    def _queue(
        self, training_id: str, asked: str, only_from: frozenset[State], **values: Any
    ) -> Training:
        now = self._clock()
        with self._database.writing() as connection:
            training = _get(connection, training_id, lock=True)
            if training.task == SCRIPT:
                raise BadInput(
                    f"Training {training_id} was built by a script, which the queue cannot start.",
                    remedy="Run the script again with the same run directory.",
                    training=training_id,
                )
            fresh = {**_FRESH, "attempts_left": training.max_attempts, "queued_ms": now}
            if not move(
                connection,
                training_id,
                State.QUEUED,
                now,
                only_from=only_from,
                **{**fresh, **values},
            ):
                raise WrongState(training_id, training.state, asked, _values(only_from))
            return _get(connection, training_id)

    def _stop(
        self, training_id: str, request: Literal["cancel", "pause"], rest: State, asked: str
    ) -> Training:
        """To `rest` at once where no attempt is; else the flag that its supervisor reads."""
        now = self._clock()
        with self._database.writing() as connection:
            training = _get(connection, training_id, lock=True)
            verdict = _BY_USER[rest]
            if move(connection, training_id, rest, now, only_from=_AT_REST, verdict=verdict):
                connection.execute(
                    sa.delete(reservations).where(reservations.c.training_id == training_id)
                )
            elif training.state in ACTIVE:
                if training.stop_request != "cancel":  # which a later pause does not take back
                    connection.execute(
                        sa.update(trainings)
                        .where(trainings.c.id == training_id)
                        .values(stop_request=request, changed_ms=now)
                    )
            elif training.state is not rest:
                allowed = _values(ACTIVE | (before(rest) & _AT_REST))
                raise WrongState(training_id, training.state, asked, allowed)
            return _get(connection, training_id)


_FRESH: dict[str, Any] = {
    "stop_request": None,
    "verdict": None,
    "archived_ms": None,
    "by_hand": False,
}
_ANEW: dict[str, Any] = {
    "resume": False,
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


def _get(connection: Connection, training_id: str, *, lock: bool = False) -> Training:
    if "\x00" in training_id:  # which PostgreSQL does not take
        raise UnknownTraining(training_id)
    query = sa.select(trainings).where(trainings.c.id == training_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise UnknownTraining(training_id)
    return Training.of(row)


def _at_rest(
    connection: Connection, training_id: str, asked: str, allowed: frozenset[State]
) -> None:
    """Lock the training, which must be in one of these states and hold no device.

    Raises:
        WrongState: If it is not, or still holds one.
    """
    training = _get(connection, training_id, lock=True)
    holding = sa.select(attempts.c.id).where(
        attempts.c.training_id == training_id, attempts.c.released_ms.is_(None)
    )
    if training.state not in allowed or connection.execute(holding).first():
        raise WrongState(training_id, training.state, asked, _values(allowed))


def _values(states: Collection[State]) -> list[str]:
    return sorted(state.value for state in states)
