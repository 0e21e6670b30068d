"""What trainings report, as plain data. Kept and read by `jobs.reports`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Value:
    """One value of a metric. One that is not finite is kept as None."""

    name: str
    step: int
    time_ms: int
    value: float | None


@dataclass(frozen=True)
class Event:
    """A line of the event log that begins at byte `offset`."""

    offset: int
    time_ms: int
    kind: str
    event: Mapping[str, Any]


@dataclass(frozen=True)
class Batch:
    """What one write brings.

    Attributes:
        values: Of metrics. A step that is reported again, after a restart, replaces the older.
        events: To be kept.
        offset: The byte of the event log up to which this reaches.
        step: The optimizer step reached.
        steps: How many there will be.
    """

    values: tuple[Value, ...] = ()
    events: tuple[Event, ...] = ()
    offset: int | None = None
    step: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Point:
    """The values of one metric over some steps, up to `step`. Mean, least and most are None where
    none of them was finite.
    """

    step: int
    time_ms: int
    mean: float | None
    least: float | None
    most: float | None
    count: int
    not_finite: int
