"""Cursors of a list of trainings: the place after which the next part begins.

A place is a time and an id, not a count, so that trainings made meanwhile shift nothing.
"""

from __future__ import annotations

import base64
import binascii

import sqlalchemy as sa

from drumline.database.tables import trainings
from drumline.errors import BadInput


def write_cursor(created_ms: int, training_id: str) -> str:
    """The cursor after this training."""
    return base64.urlsafe_b64encode(f"{created_ms}:{training_id}".encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[int, str]:
    """What `write_cursor` wrote.

    Raises:
        BadInput: If it is something else.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        time, colon, training_id = base64.urlsafe_b64decode(padded).decode().partition(":")
        if not colon or not 0 <= int(time) < 2**63 or "\x00" in training_id:
            raise ValueError
        return int(time), training_id
    except (ValueError, binascii.Error):
        raise BadInput(
            f"{cursor!r} is not a cursor.", remedy="Leave it out to begin anew.", cursor=cursor
        ) from None


def after(created_ms: int, training_id: str) -> sa.ColumnElement[bool]:
    """The trainings that come later in a list with the newest first."""
    return sa.or_(
        trainings.c.created_ms < created_ms,
        sa.and_(trainings.c.created_ms == created_ms, trainings.c.id < training_id),
    )
