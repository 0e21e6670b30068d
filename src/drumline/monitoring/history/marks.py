"""How far each rollup is, and before which time rows may be gone: one row each in the database.

Who writes readings locks these rows to share, who rolls up locks them for itself: so no reading
comes late, behind the back of a roll-up that has just passed its time.
"""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import gpu_metrics_marks

CLEANED = 0
"""The step under which it is kept before which time single readings, and rows of the finer rollups,
may be deleted: readings older than that are too late."""


def marks(
    connection: Connection, lock: Literal["none", "share", "alone"] = "none"
) -> dict[int, int]:
    """By step in seconds: all before this time is rolled up."""
    table = gpu_metrics_marks
    query = sa.select(table.c.step_s, table.c.through_s).order_by(table.c.step_s)
    if lock != "none":
        query = query.with_for_update(read=lock == "share")
    return {row.step_s: row.through_s for row in connection.execute(query)}


def set_mark(connection: Connection, step_s: int, through_s: int) -> None:
    """Move one mark, forward or back."""
    table = gpu_metrics_marks
    connection.execute(table.update().where(table.c.step_s == step_s).values(through_s=through_s))
