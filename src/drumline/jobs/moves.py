"""Changes of a training's state: each one UPDATE, guarded by the state before it, and by the
attempt's token where a supervisor asks.

So of two that want to move a training only one does, whoever is late changes nothing, and whoever
reports progress cannot bring back a training that was cancelled.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import attempts, trainings
from drumline.jobs.errors import LeaseLost
from drumline.jobs.states import ENDED, State, before


def move(
    connection: Connection,
    training_id: str,
    to: State,
    now_ms: int,
    *,
    only_from: Collection[State] | None = None,
    token: str | None = None,
    **values: Any,
) -> bool:
    """Move a training to state `to`, if it is where that is allowed; whether it was.

    Args:
        connection: In a writing transaction.
        training_id: Which one.
        to: The state to enter.
        now_ms: The time.
        only_from: Narrows the states that `jobs.states` allows before `to`.
        token: If given, it must be the token of the training's live attempt.
        **values: Other columns to set with it.
    """
    allowed = before(to) if only_from is None else before(to) & frozenset(only_from)
    update = (
        sa.update(trainings)
        .where(
            trainings.c.id == training_id,
            trainings.c.state.in_(sorted(state.value for state in allowed)),
        )
        .values(**{"state": to.value, "changed_ms": now_ms, **_stamps(to, now_ms), **values})
    )
    if token is not None:
        live = sa.select(attempts.c.training_id).where(*is_live(token))
        update = update.where(trainings.c.id.in_(live))
    return connection.execute(update).rowcount == 1


def _stamps(to: State, now_ms: int) -> dict[str, Any]:
    if to is State.QUEUED:  # what comes back by itself keeps its place in the queue
        return {"queued_ms": sa.func.coalesce(trainings.c.queued_ms, now_ms), "ended_ms": None}
    if to is State.RUNNING:  # a later attempt does not change when the training started
        return {"started_ms": sa.func.coalesce(trainings.c.started_ms, now_ms)}
    return {"ended_ms": now_ms} if to in ENDED else {}


def is_live(token: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions on an attempt: it has this token, has not ended, and was not taken back."""
    return (
        attempts.c.token == token,
        attempts.c.ended_ms.is_(None),
        attempts.c.reclaiming_ms.is_(None),
    )


def live_attempt(connection: Connection, token: str) -> sa.Row[Any]:
    """The attempt with this token, held against others until the transaction's end.

    Raises:
        LeaseLost: If the token counts no more.
    """
    query = sa.select(attempts).where(*is_live(token)).with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None:
        raise LeaseLost
    return row
