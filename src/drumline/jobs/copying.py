"""From a run's event log to what the database keeps of it.

Values of `step` and `evaluation` events become metrics, the newer of a step that was taken twice;
other events are kept as they are. How they are written is `jobs.reports`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drumline.events import EventReader
from drumline.jobs.outcome import Outcomes
from drumline.jobs.reports import Batch, Event, Reports, Value

MOST_BYTES = 2**19
"""Of the log for one batch, so that no transaction gets long."""

_NO_METRICS = frozenset({"v", "t", "attempt", "rank", "lost_before", "step", "steps"})
_NAME_LENGTH = 128
_KIND_LENGTH = 64


class Copier:
    """Brings what is new in an attempt's event log to the database.

    Args:
        reader: At the byte up to which an earlier attempt has brought events.
        reports: Where they go.
        outcomes: Told when the ranks have begun.
        token: The attempt's.
    """

    def __init__(
        self, reader: EventReader, reports: Reports, outcomes: Outcomes, token: str
    ) -> None:
        self._reader, self._reports, self._outcomes, self._token = reader, reports, outcomes, token
        self.is_running = False
        """Whether the ranks have begun, and the database knows."""

    def bring(self) -> bool:
        """One batch of what is new, and whether there was any; call it until there is none. What
        could not be brought is read again the next time.

        Raises:
            DatabaseError: If the database cannot be reached.
            LeaseLost: If the token counts no more.
        """
        before = self._reader.offset
        located = self._reader.located(MOST_BYTES)
        if self._reader.offset == before:
            return False
        try:
            self._write(located)
        except BaseException:
            self._reader = EventReader(self._reader.path, before)
            raise
        return True

    def _write(self, located: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        started = [event for _, event in located if event["kind"] == "run_started"]
        batch = batch_of(located, self._reader.offset)
        if started and not self.is_running:
            size = _count(started[-1].get("world_size"))
            self._outcomes.running(self._token, world_size=size, steps=batch.steps)
            self.is_running = True
        self._reports.write(self._token, batch)


def batch_of(located: Iterable[tuple[int, Mapping[str, Any]]], offset: int) -> Batch:
    """What events bring.

    Args:
        located: Events, each with the byte its line begins at.
        offset: The byte up to which they reach.
    """
    values: dict[tuple[str, int], Value] = {}
    kept: list[Event] = []
    step = steps = None
    for begins, event in located:
        kind = str(event["kind"])[:_KIND_LENGTH]
        time_ms = _milliseconds(event.get("t"))
        if kind == "step":
            step, steps = _count(event.get("step")), _count(event.get("steps"))
        else:
            kept.append(Event(begins, time_ms, kind, event))
        if kind == "run_started":
            step, steps = _count(event.get("step")), _count(event.get("steps"))
        for name, at, value in _metrics(kind, event):
            values[name, at] = Value(name, at, time_ms, value)
    return Batch(tuple(values.values()), tuple(kept), offset, step, steps)


def _metrics(kind: str, event: Mapping[str, Any]) -> Iterator[tuple[str, int, float | None]]:
    step = _count(event.get("step"))
    if kind not in ("step", "evaluation") or step is None:
        return
    own = {key: value for key, value in event.items() if key not in _NO_METRICS}
    told = own.pop("metrics", None)
    prefix = "evaluation/" if kind == "evaluation" else ""
    for source in (own if kind == "step" else {}, told if isinstance(told, dict) else {}):
        for name, value in source.items():
            number = _number(value)
            if number is not NotImplemented:
                yield f"{prefix}{name}"[:_NAME_LENGTH], step, number


def _number(value: Any) -> Any:
    """A number, None for one that was not finite, NotImplemented for what is none."""
    if isinstance(value, bool):
        return NotImplemented
    if isinstance(value, int | float):
        return float(value)
    return None if value in ("nan", "inf", "-inf") else NotImplemented


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _milliseconds(seconds: Any) -> int:
    return round(seconds * 1000) if isinstance(seconds, int | float) else 0
