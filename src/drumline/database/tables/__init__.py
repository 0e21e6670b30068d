"""All tables, as SQLAlchemy Core describes them. Migrations make them; a test holds both equal.

Times are milliseconds since 1970 in UTC, sizes bytes, unless a name says otherwise.
"""

from drumline.database.tables.base import metadata
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
    "hosts",
    "metadata",
    "reservations",
    "training_events",
    "training_metrics",
    "trainings",
]
