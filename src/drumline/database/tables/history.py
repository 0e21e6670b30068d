"""What the devices did over time: single readings, and rollups of them.

Small on purpose, as eight devices at 1 Hz give 691,200 readings a day: whole numbers in the units
of the columns' names, one reading a second and device, and what changes seldom kept once in
`gpu_metrics_states`. Readings lie in order of time, so that each write appends to one page and old
ones leave whole pages; rollups, which are read far more than written, device by device. A field
that a device did not report is NULL.
"""

from __future__ import annotations

import sqlalchemy as sa

from drumline.database.tables.base import Integer, metadata

# Which training, or other work, a device was leased to. Rollups know it by number; 0 is none.
gpu_metrics_jobs = sa.Table(
    "gpu_metrics_jobs",
    metadata,
    sa.Column("id", Integer, primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.String(64), nullable=False, index=True),
    sa.Column("job_type", sa.String(32), nullable=False),
)

# What holds for many readings in a row, of any device. Two rows that say the same do no harm.
gpu_metrics_states = sa.Table(
    "gpu_metrics_states",
    metadata,
    sa.Column("id", Integer, primary_key=True, autoincrement=True),
    sa.Column("memory_total_mib", sa.Integer),
    sa.Column("memory_clock_mhz", sa.Integer),
    sa.Column("throttle_bits", sa.Integer),
    sa.Column("job", sa.BigInteger, nullable=False, index=True),
)

# `device` is devices.id and `state` gpu_metrics_states.id. Neither is a declared foreign key:
# checking them would cost more than the insert.
gpu_metrics_history = sa.Table(
    "gpu_metrics_history",
    metadata,
    sa.Column("time_s", sa.BigInteger, nullable=False),
    sa.Column("device", sa.Integer, nullable=False),
    sa.Column("state", sa.Integer, nullable=False),
    sa.Column("utilization_percent", sa.SmallInteger),
    sa.Column("memory_used_mib", sa.Integer),
    sa.Column("temperature_c", sa.SmallInteger),
    sa.Column("power_dw", sa.Integer),
    sa.Column("sm_clock_mhz", sa.Integer),
    sa.PrimaryKeyConstraint("time_s", "device"),
    sqlite_with_rowid=False,
)

ROLLED_UP = (
    "utilization_percent",
    "memory_used_mib",
    "temperature_c",
    "power_dw",
    "sm_clock_mhz",
    "memory_clock_mhz",
)
"""Of these, rollups hold `_min`, `_sum`, `_max`, and `_count` of the readings that reported it."""


def _rollup(name: str) -> sa.Table:
    measures = [
        sa.Column(f"{metric}_{part}", sa.Integer)
        for metric in ROLLED_UP
        for part in ("min", "sum", "max", "count")
    ]
    return sa.Table(
        name,
        metadata,
        sa.Column("time_s", sa.BigInteger, nullable=False),  # the bucket's begin
        sa.Column("device", sa.Integer, nullable=False),
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("readings", sa.Integer, nullable=False),
        sa.Column("memory_total_mib", sa.Integer),  # the largest
        sa.Column("throttle_bits", sa.Integer),  # all that were set in any reading
        *measures,
        sa.PrimaryKeyConstraint("device", "time_s", "job"),
        sqlite_with_rowid=False,
    )


gpu_metrics_10s = _rollup("gpu_metrics_10s")
gpu_metrics_1min = _rollup("gpu_metrics_1min")
gpu_metrics_15min = _rollup("gpu_metrics_15min")

# All readings before `through_s` are in the rollup of `step_s`. Step 0 is not a rollup: rows that
# rollups are made of may be deleted before its `through_s`. A migration makes these rows.
gpu_metrics_marks = sa.Table(
    "gpu_metrics_marks",
    metadata,
    sa.Column("step_s", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("through_s", sa.BigInteger, nullable=False),
)
