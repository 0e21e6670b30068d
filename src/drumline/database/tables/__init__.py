"""All tables, as SQLAlchemy Core describes them. Migrations make them; a test holds both equal.

Times are milliseconds since 1970 in UTC, sizes bytes, unless a name says otherwise.
"""

from drumline.database.tables.access import sessions, tokens
from drumline.database.tables.base import metadata
from drumline.database.tables.history import (
    gpu_metrics_1min,
    gpu_metrics_10s,
    gpu_metrics_15min,
    gpu_metrics_history,
    gpu_metrics_jobs,
    gpu_metrics_marks,
    gpu_metrics_states,
)
from drumline.database.tables.machines import devices, hosts
from drumline.database.tables.trainings import (
    attempts,
    gpu_leases,
    reservations,
    training_events,
    training_metrics,
    trainings,
)

__all__ = [
    "attempts",
    "devices",
    "gpu_leases",
    "gpu_metrics_1min",
    "gpu_metrics_10s",
    "gpu_metrics_15min",
    "gpu_metrics_history",
    "gpu_metrics_jobs",
    "gpu_metrics_marks",
    "gpu_metrics_states",
    "hosts",
    "metadata",
    "reservations",
    "sessions",
    "tokens",
    "training_events",
    "training_metrics",
    "trainings",
]
