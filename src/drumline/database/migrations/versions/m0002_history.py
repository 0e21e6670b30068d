"""Readings of devices over time, their rollups, and how far those are."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ROLLUPS = ("gpu_metrics_10s", "gpu_metrics_1min", "gpu_metrics_15min")
ROLLED_UP = (
    "utilization_percent",
    "memory_used_mib",
    "temperature_c",
    "power_dw",
    "sm_clock_mhz",
    "memory_clock_mhz",
)


def upgrade() -> None:
    """Make all tables of the history."""
    integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "gpu_metrics_jobs",
        sa.Column("id", integer, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("job_type", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gpu_metrics_jobs"),
    )
    op.create_index("ix_gpu_metrics_jobs_job_id", "gpu_metrics_jobs", ["job_id"])
    op.create_table(
        "gpu_metrics_states",
        sa.Column("id", integer, autoincrement=True, nullable=False),
        sa.Column("memory_total_mib", sa.Integer),
        sa.Column("memory_clock_mhz", sa.Integer),
        sa.Column("throttle_bits", sa.Integer),
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gpu_metrics_states"),
    )
    op.create_index("ix_gpu_metrics_states_job", "gpu_metrics_states", ["job"])
    op.create_table(
        "gpu_metrics_history",
        sa.Column("time_s", sa.BigInteger, nullable=False),
        sa.Column("device", sa.Integer, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("utilization_percent", sa.SmallInteger),
        sa.Column("memory_used_mib", sa.Integer),
        sa.Column("temperature_c", sa.SmallInteger),
        sa.Column("power_dw", sa.Integer),
        sa.Column("sm_clock_mhz", sa.Integer),
        sa.PrimaryKeyConstraint("time_s", "device", name="pk_gpu_metrics_history"),
        sqlite_with_rowid=False,
    )
    for name in ROLLUPS:
        _create_rollup(name)
    marks = op.create_table(
        "gpu_metrics_marks",
        sa.Column("step_s", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("through_s", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("step_s", name="pk_gpu_metrics_marks"),
    )
    op.bulk_insert(marks, [{"step_s": step_s, "through_s": 0} for step_s in (0, 10, 60, 900)])


def _create_rollup(name: str) -> None:
    measures = [
        sa.Column(f"{metric}_{part}", sa.Integer)
        for metric in ROLLED_UP
        for part in ("min", "sum", "max", "count")
    ]
    op.create_table(
        name,
        sa.Column("time_s", sa.BigInteger, nullable=False),
        sa.Column("device", sa.Integer, nullable=False),
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("readings", sa.Integer, nullable=False),
        sa.Column("memory_total_mib", sa.Integer),
        sa.Column("throttle_bits", sa.Integer),
        *measures,
        sa.PrimaryKeyConstraint("device", "time_s", "job", name=f"pk_{name}"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("gpu_metrics_marks")
    for name in reversed(ROLLUPS):
        op.drop_table(name)
    op.drop_table("gpu_metrics_history")
    op.drop_table("gpu_metrics_states")
    op.drop_table("gpu_metrics_jobs")
