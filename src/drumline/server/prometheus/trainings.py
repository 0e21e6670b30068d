"""Samples of trainings and of the queue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from sqlalchemy.engine import Connection

from drumline.database.tables import gpu_leases, trainings
from drumline.jobs.newest import newest_metrics
from drumline.jobs.reports import Value
from drumline.jobs.states import ACTIVE, ENDED, State

LABELS = ("training", "name", "task", "owner")
ENDED_SHOWN_MS = 600_000  # so that a scrape sees how a training ended
MOST_SHOWN = 500

# The metric of a run's step event, and the family it becomes.
FIGURES = {
    "loss": ("drumline_training_loss", "Loss at the last step that was reported."),
    "samples_per_s": (
        "drumline_training_samples_per_second",
        "Samples a second over all ranks, as last reported.",
    ),
}


def training_samples(connection: Connection, now_ms: int) -> Iterator[Metric]:
    """Families of the trainings that hold devices or have ended within ten minutes."""
    rows = _rows(connection, now_ms)
    metrics = newest_metrics(connection, [row.id for row in rows])
    yield from _per_training(rows, metrics)
    yield from _whole(connection)


def _rows(connection: Connection, now_ms: int) -> Sequence[Any]:
    c = trainings.c
    active = c.state.in_([state.value for state in ACTIVE])
    ended = sa.and_(
        c.state.in_([state.value for state in ENDED]), c.ended_ms > now_ms - ENDED_SHOWN_MS
    )
    query = (
        sa.select(c.id, c.name, c.task, c.owner, c.state, c.step, c.steps, c.progress_ms)
        .where(sa.or_(active, ended))
        .order_by(c.created_ms.desc(), c.id)
        .limit(MOST_SHOWN)
    )
    return connection.execute(query).all()


def _per_training(
    rows: Sequence[Any], metrics: Mapping[str, Mapping[str, Value]]
) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "drumline_training_state", "1 for the state it is in.", labels=[*LABELS, "state"]
    )
    step = GaugeMetricFamily("drumline_training_step", "Optimizer steps made.", labels=LABELS)
    steps = GaugeMetricFamily("drumline_training_steps", "Steps in all.", labels=LABELS)
    progress = GaugeMetricFamily(
        "drumline_training_progress_timestamp_seconds", "When it last made a step.", labels=LABELS
    )
    figures = {
        name: GaugeMetricFamily(family, says, labels=LABELS)
        for name, (family, says) in FIGURES.items()
    }
    for row in rows:
        labels = [row.id, row.name, row.task, row.owner]
        state.add_metric([*labels, row.state], 1)
        _add(step, labels, row.step)
        _add(steps, labels, row.steps)
        _add(progress, labels, None if row.progress_ms is None else row.progress_ms / 1000)
        for name, figure in figures.items():
            value = metrics.get(row.id, {}).get(name)
            if value is not None:
                _add(figure, labels, math.nan if value.value is None else value.value)
    yield from (state, step, steps, progress, *figures.values())


def _whole(connection: Connection) -> Iterator[Metric]:
    counts: dict[str, int] = dict.fromkeys(map(str, State), 0)
    query = sa.select(trainings.c.state, sa.func.count()).group_by(trainings.c.state)
    counts |= {row.state: row[1] for row in connection.execute(query)}
    family = GaugeMetricFamily("drumline_trainings", "Trainings by state.", labels=["state"])
    for name, count in counts.items():
        family.add_metric([name], count)
    leases = connection.execute(sa.select(sa.func.count()).select_from(gpu_leases)).scalar_one()
    yield family
    yield GaugeMetricFamily("drumline_leases", "Devices that are leased.", value=leases)
    yield GaugeMetricFamily(
        "drumline_queue_length", "Trainings that wait for devices.", value=counts["queued"]
    )


def _add(family: GaugeMetricFamily, labels: Sequence[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
