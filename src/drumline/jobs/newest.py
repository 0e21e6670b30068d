"""The last value of each metric of some trainings, in one query that steps from name to name along
the key and so costs the same however many steps there are.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import training_metrics, trainings
from drumline.jobs.reported import Value


def newest_metrics(
    connection: Connection, training_ids: Collection[str]
) -> dict[str, dict[str, Value]]:
    """The last value of each metric by name, for each training that has any."""
    if not training_ids:
        return {}
    names, last = _names(training_ids), training_metrics.alias("last")
    newest = (
        sa.select(sa.func.max(last.c.step))
        .where(last.c.training_id == names.c.id, last.c.name == names.c.name)
        .scalar_subquery()
    )
    m = training_metrics.c
    query = sa.select(m.training_id, m.name, m.step, m.time_ms, m.value).join(
        names, sa.and_(m.training_id == names.c.id, m.name == names.c.name, m.step == newest)
    )
    found: dict[str, dict[str, Value]] = {}
    for row in connection.execute(query):
        value = Value(row.name, row.step, row.time_ms, row.value)
        found.setdefault(row.training_id, {})[row.name] = value
    return found


def _names(training_ids: Collection[str]) -> sa.CTE:
    """Each training with each of its metrics' names, found by asking for the next after the last;
    the name after the last one is NULL.
    """
    first, after = training_metrics.alias("first"), training_metrics.alias("after")
    begin = sa.select(
        trainings.c.id,
        sa.select(sa.func.min(first.c.name))
        .where(first.c.training_id == trainings.c.id)
        .scalar_subquery()
        .label("name"),
    ).where(trainings.c.id.in_(list(training_ids)))
    names = begin.cte("names", recursive=True)
    following = (
        sa.select(sa.func.min(after.c.name))
        .where(after.c.training_id == names.c.id, after.c.name > names.c.name)
        .scalar_subquery()
    )
    return names.union_all(sa.select(names.c.id, following).where(names.c.name.is_not(None)))
