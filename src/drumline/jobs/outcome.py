"""What an attempt's supervisor writes: that it is there, how far it is, and how it ended.

Everything is guarded by the attempt's token. A supervisor whose lease was taken back gets
`LeaseLost` and has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database import Database, now_ms
from drumline.database.tables import attempts, gpu_leases, trainings
from drumline.jobs.errors import LeaseLost, WrongState
from drumline.jobs.moves import live_attempt, move
from drumline.jobs.states import ACTIVE, State, before


@dataclass(frozen=True)
class Ending:
    """How an attempt ended.

    Attributes:
        state: SUCCEEDED, FAILED, CANCELLED, PAUSED, or QUEUED where it is to go on in another
            attempt.
        cause: One word: done, failed, bad_input, cancelled, paused, stopped, lost.
        verdict: What happened, in one sentence for the user.
        exit_code: Of the launcher, where there is one.
    """

    state: State
    cause: str
    verdict: str
    exit_code: int | None = None


def settle(ending: Ending, stop_request: str | None, attempts_left: int) -> Ending:
    """The ending that counts, given what the user asked and how many attempts are left.

    A cancel holds against everything but success, which had come before it.
    """
    if ending.state is State.SUCCEEDED:
        return ending
    if stop_request == "cancel":
        return Ending(State.CANCELLED, "cancelled", ending.verdict, ending.exit_code)
    if ending.state is not State.QUEUED:
        return ending
    if stop_request == "pause":
        return Ending(State.PAUSED, "paused", ending.verdict, ending.exit_code)
    if attempts_left <= 0:
        verdict = f"{ending.verdict}; no attempts are left"
        return Ending(State.FAILED, ending.cause, verdict, ending.exit_code)
    return ending


class Outcomes:
    """Written by supervisors."""

    def __init__(self, database: Database, clock: Callable[[], int] = now_ms) -> None:
        self._database = database
        self._clock = clock

    def starting(
        self,
        token: str,
        *,
        process_id: int | None = None,
        process_started: float | None = None,
        run_dir: str | None = None,
    ) -> None:
        """The supervisor is there, leads this process group, and works in this run directory.

        Raises:
            LeaseLost: If the token counts no more.
            WrongState: If the training is not leased.
        """
        process = {"process_id": process_id, "process_started": process_started}
        values = {} if run_dir is None else {"run_dir": run_dir}
        self._advance(token, State.STARTING, process, **values)

    def running(self, token: str, **values: Any) -> None:
        """The ranks are there. `values` may be `world_size` and `steps`.

        Raises:
            LeaseLost: If the token counts no more.
            WrongState: If the training is not starting.
        """
        self._advance(token, State.RUNNING, {"running_ms": self._clock()}, **values)

    def pausing(self, token: str) -> None:
        """The ranks have been told to save and stop.

        Raises:
            LeaseLost: If the token counts no more.
            WrongState: If the training does not run.
        """
        self._advance(token, State.PAUSING, {})

    def finish(self, token: str, ending: Ending, *, release: bool = True) -> State:
        """Write how the attempt ended; the state the training is in then.

        Args:
            token: The attempt's.
            ending: How; what counts is `settle`d with what the user asked meanwhile.
            release: Give the devices back in the same transaction, since all processes are gone
                and the devices' memory has fallen. Else `Leases.release` does that later.

        Raises:
            LeaseLost: If the token counts no more.
            WrongState: If it may not end so: with success before it was starting, say.
        """
        now = self._clock()
        with self._database.writing() as connection:
            attempt = live_attempt(connection, token)
            state = end_attempt(connection, attempt, ending, now, token=token)
            if release:
                give_back(connection, attempt.id, now)
            return state

    def _advance(self, token: str, to: State, process: dict[str, Any], **values: Any) -> None:
        now = self._clock()
        with self._database.writing() as connection:
            attempt = live_attempt(connection, token)
            if not move(connection, attempt.training_id, to, now, token=token, **values):
                query = sa.select(trainings.c.state).where(trainings.c.id == attempt.training_id)
                state = connection.execute(query).scalar_one()
                if state == to:  # told twice
                    return
                allowed = sorted(state.value for state in before(to))
                raise WrongState(attempt.training_id, state, to.value, allowed)
            if process:
                connection.execute(
                    sa.update(attempts).where(attempts.c.id == attempt.id).values(**process)
                )


def end_attempt(
    connection: Connection, attempt: Any, ending: Ending, now: int, *, token: str | None
) -> State:
    """Write the end of a live attempt and move its training; the state it is in then.

    Raises:
        LeaseLost: If the training is not in an active state.
        WrongState: If it may not end so from the state it is in.
    """
    query = sa.select(trainings).where(trainings.c.id == attempt.training_id).with_for_update()
    training = connection.execute(query).one()
    counted = settle(ending, training.stop_request, training.attempts_left)
    values: dict[str, Any] = {"verdict": counted.verdict, "stop_request": None}
    if counted.state in (State.QUEUED, State.PAUSED):
        values["resume"] = True
    moved = move(
        connection,
        attempt.training_id,
        counted.state,
        now,
        only_from=ACTIVE,
        token=token,
        **values,
    )
    if not moved:
        if training.state not in ACTIVE:
            raise LeaseLost
        allowed = sorted(state.value for state in before(counted.state))
        raise WrongState(attempt.training_id, training.state, counted.state.value, allowed)
    connection.execute(
        sa.update(attempts)
        .where(attempts.c.id == attempt.id)
        .values(
            ended_ms=now,
            exit_cause=counted.cause,
            exit_code=counted.exit_code,
            verdict=counted.verdict,
        )
    )
    return counted.state


def give_back(connection: Connection, attempt_id: int, now: int) -> None:
    """The devices of an attempt are free."""
    connection.execute(sa.delete(gpu_leases).where(gpu_leases.c.attempt_id == attempt_id))
    connection.execute(
        sa.update(attempts).where(attempts.c.id == attempt_id).values(released_ms=now)
    )
