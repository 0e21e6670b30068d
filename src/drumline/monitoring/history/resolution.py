"""The resolutions that the history is kept in, and how long each is kept."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from drumline.config.service import DAY_S, ServiceSettings
from drumline.database.tables import (
    gpu_metrics_1min,
    gpu_metrics_10s,
    gpu_metrics_15min,
    gpu_metrics_history,
)


@dataclass(frozen=True)
class Rollup:
    """One table of rollups: a row for every `step_s`, made of the rows of `source`."""

    step_s: int
    table: sa.Table
    source: sa.Table


RAW = gpu_metrics_history
ROLLUPS = (
    Rollup(10, gpu_metrics_10s, RAW),
    Rollup(60, gpu_metrics_1min, gpu_metrics_10s),
    Rollup(900, gpu_metrics_15min, gpu_metrics_1min),
)
COARSEST_S = ROLLUPS[-1].step_s


def kept_s(settings: ServiceSettings) -> dict[sa.Table, int]:
    """For how many seconds each table's rows are kept."""
    days = {
        RAW: settings.raw_days,
        gpu_metrics_10s: settings.minute_days,
        gpu_metrics_1min: settings.minute_days,
        gpu_metrics_15min: settings.quarter_days,
    }
    return {table: int(kept * DAY_S) for table, kept in days.items()}
