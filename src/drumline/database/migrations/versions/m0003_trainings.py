"""Trainings, attempts, leases, reservations, and what trainings have reported."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    _make_trainings()
    _make_attempts()
    _make_gpu_leases()
    _make_reservations()
    _make_training_metrics()
    _make_training_events()


def downgrade() -> None:
    """Drop the tables, those that point to others first."""
    op.drop_table("training_events")
    op.drop_table("training_metrics")
    op.drop_table("reservations")
    op.drop_table("gpu_leases")
    op.drop_table("attempts")
    op.drop_table("trainings")


def _make_trainings() -> None:
    op.create_table(
        "trainings",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("task", sa.String(255), nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("by_hand", sa.Boolean, nullable=False),
        sa.Column("cloned_from", sa.String(32)),
        sa.Column("gpu_ids", sa.JSON, nullable=False),
        sa.Column("gpus", sa.String(16), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger),
        sa.Column("asked_host", sa.String(64)),
        sa.Column("expected_s", sa.Float),
        sa.Column("distributed", sa.Boolean, nullable=False),
        sa.Column("host_id", sa.String(64)),
        sa.Column("world_size", sa.Integer),
        sa.Column("run_dir", sa.Text),
        sa.Column("resume", sa.Boolean, nullable=False),
        sa.Column("attempts_made", sa.Integer, nullable=False),
        sa.Column("attempts_left", sa.Integer, nullable=False),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("stop_request", sa.String(16)),
        sa.Column("step", sa.BigInteger),
        sa.Column("steps", sa.BigInteger),
        sa.Column("progress_ms", sa.BigInteger),
        sa.Column("events_offset", sa.BigInteger, nullable=False),
        sa.Column("verdict", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("queued_ms", sa.BigInteger),
        sa.Column("started_ms", sa.BigInteger),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
        sa.Column("archived_ms", sa.BigInteger),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_trainings_host_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trainings"),
        sa.UniqueConstraint("owner", "idempotency_key", name="uq_trainings_owner_idempotency_key"),
    )
    op.create_index("ix_trainings_changed_ms", "trainings", ["changed_ms"])
    op.create_index("ix_trainings_created_ms_id", "trainings", ["created_ms", "id"])
    op.create_index("ix_trainings_state_queued_ms", "trainings", ["state", "queued_ms"])


def _make_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", integer, autoincrement=True, nullable=False),
        sa.Column("training_id", sa.String(32), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("gpu_ids", sa.JSON, nullable=False),
        sa.Column("gpu_count", sa.Integer, nullable=False),
        sa.Column("process_id", sa.BigInteger),
        sa.Column("process_started", sa.Float),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
        sa.Column("claimed_ms", sa.BigInteger, nullable=False),
        sa.Column("running_ms", sa.BigInteger),
        sa.Column("reclaiming_ms", sa.BigInteger),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("released_ms", sa.BigInteger),
        sa.Column("exit_cause", sa.String(32)),
        sa.Column("exit_code", sa.Integer),
        sa.Column("verdict", sa.Text),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_attempts_host_id"),
        sa.ForeignKeyConstraint(["training_id"], ["trainings.id"], name="fk_attempts_training_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("token", name="uq_attempts_token"),
        sa.UniqueConstraint("training_id", "number", name="uq_attempts_training_id_number"),
    )
    op.create_index(
        "ix_attempts_released_ms_lease_until_ms", "attempts", ["released_ms", "lease_until_ms"]
    )


def _make_gpu_leases() -> None:
    op.create_table(
        "gpu_leases",
        sa.Column("device_uuid", sa.String(96), nullable=False),
        sa.Column("training_id", sa.String(32), nullable=False),
        sa.Column("attempt_id", integer, nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("leased_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_gpu_leases_attempt_id"),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_gpu_leases_host_id"),
        sa.ForeignKeyConstraint(
            ["training_id"], ["trainings.id"], name="fk_gpu_leases_training_id"
        ),
        sa.PrimaryKeyConstraint("device_uuid", name="pk_gpu_leases"),
    )
    op.create_index("ix_gpu_leases_attempt_id", "gpu_leases", ["attempt_id"])
    op.create_index("ix_gpu_leases_training_id", "gpu_leases", ["training_id"])


def _make_reservations() -> None:
    op.create_table(
        "reservations",
        sa.Column("device_uuid", sa.String(96), nullable=False),
        sa.Column("host_id", sa.String(64)),
        sa.Column("training_id", sa.String(32)),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("made_ms", sa.BigInteger, nullable=False),
        sa.Column("renewed_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(
            ["training_id"], ["trainings.id"], name="fk_reservations_training_id"
        ),
        sa.PrimaryKeyConstraint("device_uuid", name="pk_reservations"),
    )
    op.create_index("ix_reservations_host_id", "reservations", ["host_id"])
    op.create_index("ix_reservations_training_id", "reservations", ["training_id"])


def _make_training_metrics() -> None:
    op.create_table(
        "training_metrics",
        sa.Column("training_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("step", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("time_ms", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Float),
        sa.ForeignKeyConstraint(
            ["training_id"], ["trainings.id"], name="fk_training_metrics_training_id"
        ),
        sa.PrimaryKeyConstraint("training_id", "name", "step", name="pk_training_metrics"),
        sqlite_with_rowid=False,
    )


def _make_training_events() -> None:
    op.create_table(
        "training_events",
        sa.Column("training_id", sa.String(32), nullable=False),
        sa.Column("offset", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("time_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("event", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["training_id"], ["trainings.id"], name="fk_training_events_training_id"
        ),
        sa.PrimaryKeyConstraint("training_id", "offset", name="pk_training_events"),
        sqlite_with_rowid=False,
    )
