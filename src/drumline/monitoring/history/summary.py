"""The columns that sum up many readings, from single readings or from rollups, as SQL.

Sums and counts are whole numbers, so summing up in one step or in several gives the same.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from drumline.database.tables import gpu_metrics_history, gpu_metrics_states
from drumline.database.tables.history import ROLLED_UP
from drumline.hardware.providers.nvidia_fields import THROTTLE_WORDS

SUMMARY = (
    "readings",
    "memory_total_mib",
    "throttle_bits",
    *(f"{metric}_{part}" for metric in ROLLED_UP for part in ("min", "sum", "max", "count")),
)
"""The names of the columns, in the order of `summary`."""


class bit_or(FunctionElement[int]):  # noqa: N801 - named like SQL's function
    """All bits that are set in any row; NULL where all rows are NULL. PostgreSQL has it."""

    inherit_cache = True
    type = sa.Integer()
    name = "bit_or"


@compiles(bit_or, "sqlite")
def _on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    return "(" + " | ".join(f"max({column} & {bit})" for bit in THROTTLE_WORDS) + ")"


@compiles(bit_or, "postgresql")
def _on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    return f"bit_or({compiler.process(element.clauses, **options)})"


def rows_of(table: sa.Table) -> sa.FromClause:
    """What to select from: single readings come with their states."""
    if table is not gpu_metrics_history:
        return table
    return table.join(gpu_metrics_states, gpu_metrics_states.c.id == table.c.state)


def job_of(table: sa.Table) -> sa.ColumnElement[int]:
    """The column of the job's number."""
    return gpu_metrics_states.c.job if table is gpu_metrics_history else table.c.job


def summary(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    """The columns of `SUMMARY` over groups of rows."""
    if table is gpu_metrics_history:
        columns = {**dict(gpu_metrics_states.c.items()), **dict(table.c.items())}
        measures = [_of_readings(columns[metric]) for metric in ROLLED_UP]
        counted: sa.ColumnElement[Any] = sa.func.count()
    else:
        columns = dict(table.c.items())
        measures = [_of_rollups(columns, metric) for metric in ROLLED_UP]
        counted = sa.func.sum(columns["readings"])
    expressions = [
        counted,
        sa.func.max(columns["memory_total_mib"]),
        bit_or(columns["throttle_bits"]),
        *(expression for measure in measures for expression in measure),
    ]
    return [part.label(name) for part, name in zip(expressions, SUMMARY, strict=True)]


def _of_readings(column: sa.ColumnElement[int]) -> list[sa.ColumnElement[Any]]:
    f = sa.func
    return [f.min(column), f.sum(column), f.max(column), f.count(column)]


def _of_rollups(columns: dict[str, Any], metric: str) -> list[sa.ColumnElement[Any]]:
    f = sa.func
    return [
        f.min(columns[f"{metric}_min"]),
        f.sum(columns[f"{metric}_sum"]),
        f.max(columns[f"{metric}_max"]),
        f.sum(columns[f"{metric}_count"]),
    ]
