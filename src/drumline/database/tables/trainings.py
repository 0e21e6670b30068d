"""Trainings, their attempts, the leases on devices, and what trainings have reported.

What rows mean and who may change them belongs to `drumline.jobs`.
"""

from __future__ import annotations

import sqlalchemy as sa

from drumline.database.tables.base import Integer, metadata

_TRAINING = "trainings.id"

trainings = sa.Table(
    "trainings",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("task", sa.String(255), nullable=False),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("owner", sa.String(255), nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("idempotency_key", sa.String(255)),
    sa.Column("by_hand", sa.Boolean, nullable=False),  # started outside the queue
    sa.Column("cloned_from", sa.String(32)),
    # What is asked for.
    sa.Column("gpu_ids", sa.JSON, nullable=False),  # UUIDs; empty where their number is asked for
    sa.Column("gpus", sa.String(16), nullable=False),  # auto, all, or a number; 0: only the CPU
    sa.Column("memory_bytes", sa.BigInteger),  # on each device
    sa.Column("asked_host", sa.String(64)),
    sa.Column("expected_s", sa.Float),  # how long it is predicted to run
    sa.Column("distributed", sa.Boolean, nullable=False),
    # What was given.
    sa.Column("host_id", sa.ForeignKey("hosts.id")),
    sa.Column("world_size", sa.Integer),
    sa.Column("run_dir", sa.Text),
    sa.Column("resume", sa.Boolean, nullable=False),  # the next attempt goes on from a checkpoint
    sa.Column("attempts_made", sa.Integer, nullable=False),
    sa.Column("attempts_left", sa.Integer, nullable=False),
    sa.Column("max_attempts", sa.Integer, nullable=False),
    # How it goes.
    sa.Column("stop_request", sa.String(16)),  # cancel or pause, until it has been carried out
    sa.Column("step", sa.BigInteger),
    sa.Column("steps", sa.BigInteger),
    sa.Column("progress_ms", sa.BigInteger),
    sa.Column("events_offset", sa.BigInteger, nullable=False),  # bytes of the log copied so far
    sa.Column("verdict", sa.Text),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("queued_ms", sa.BigInteger),
    sa.Column("started_ms", sa.BigInteger),
    sa.Column("ended_ms", sa.BigInteger),
    sa.Column("changed_ms", sa.BigInteger, nullable=False),
    sa.Column("archived_ms", sa.BigInteger),
    sa.UniqueConstraint("owner", "idempotency_key"),
    sa.Index(None, "state", "queued_ms"),
    sa.Index(None, "created_ms", "id"),
    sa.Index(None, "changed_ms"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", Integer, primary_key=True, autoincrement=True),
    sa.Column("training_id", sa.ForeignKey(_TRAINING), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),  # from 1
    sa.Column("token", sa.String(64), nullable=False, unique=True),
    sa.Column("host_id", sa.ForeignKey("hosts.id"), nullable=False),
    sa.Column("gpu_ids", sa.JSON, nullable=False),
    sa.Column("gpu_count", sa.Integer, nullable=False),
    sa.Column("process_id", sa.BigInteger),  # leads the process group
    sa.Column("process_started", sa.Float),  # tells it from a later process of that id
    sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
    sa.Column("claimed_ms", sa.BigInteger, nullable=False),
    sa.Column("running_ms", sa.BigInteger),
    sa.Column("reclaiming_ms", sa.BigInteger),  # the lease ran out; the token counts no more
    sa.Column("ended_ms", sa.BigInteger),  # the outcome is known
    sa.Column("released_ms", sa.BigInteger),  # the devices are given back
    sa.Column("exit_cause", sa.String(32)),
    sa.Column("exit_code", sa.Integer),
    sa.Column("verdict", sa.Text),
    sa.UniqueConstraint("training_id", "number"),
    sa.Index(None, "released_ms", "lease_until_ms"),
)

gpu_leases = sa.Table(
    "gpu_leases",
    metadata,
    sa.Column("device_uuid", sa.String(96), primary_key=True),
    sa.Column("training_id", sa.ForeignKey(_TRAINING), nullable=False, index=True),
    sa.Column("attempt_id", sa.ForeignKey("attempts.id"), nullable=False, index=True),
    sa.Column("host_id", sa.ForeignKey("hosts.id"), nullable=False),
    sa.Column("leased_ms", sa.BigInteger, nullable=False),
)

# Devices held back: for a training that waits (renewed as long as it does), or by an operator.
reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column("device_uuid", sa.String(96), primary_key=True),
    sa.Column("host_id", sa.String(64), index=True),
    sa.Column("training_id", sa.ForeignKey(_TRAINING), index=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("made_ms", sa.BigInteger, nullable=False),
    sa.Column("renewed_ms", sa.BigInteger, nullable=False),
)

training_metrics = sa.Table(
    "training_metrics",
    metadata,
    sa.Column("training_id", sa.ForeignKey(_TRAINING), primary_key=True),
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("time_ms", sa.BigInteger, nullable=False),
    sa.Column("value", sa.Float),  # absent where it was not finite
    sqlite_with_rowid=False,
)

training_events = sa.Table(
    "training_events",
    metadata,
    sa.Column("training_id", sa.ForeignKey(_TRAINING), primary_key=True),
    sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),  # in the event log
    sa.Column("time_ms", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("event", sa.JSON, nullable=False),
    sqlite_with_rowid=False,
)
