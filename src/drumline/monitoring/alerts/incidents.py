"""From readings to incidents: each is told once when it begins and once when it is over.

What is open is kept in memory; `open` gives it out and `restore` takes it back, for who wants to
keep it over a restart.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from drumline.monitoring.alerts.rules import RULES, Reading, Rule

Place = tuple[str, str]  # the name of a rule, and the key of a subject


@dataclass(frozen=True)
class Alert:
    """What is told. `id` is the same for the beginning and the end of one incident."""

    id: str
    state: Literal["raised", "resolved"]
    rule: str
    key: str
    subject: str
    message: str
    value: float | None
    since_ms: int
    at_ms: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


class Incidents:
    """All incidents by rule and subject. Used by one thread."""

    def __init__(self, rules: Iterable[Rule] = RULES) -> None:
        self._ends_when_gone = {rule.name for rule in rules if rule.ends_when_gone}
        self._open: dict[Place, Alert] = {}
        self._turning_ms: dict[Place, int] = {}  # since when it is other than was told

    @property
    def open(self) -> tuple[Alert, ...]:
        """What is wrong now, as it was told."""
        return tuple(self._open.values())

    def restore(self, alerts: Iterable[Alert]) -> None:
        """Take incidents as open, and told already."""
        self._open.update({(alert.rule, alert.key): alert for alert in alerts})

    def judge(self, readings: Iterable[Reading], now_ms: int) -> list[Alert]:
        """What is to be told after these readings, all of one moment.

        A subject without a reading stays as it is, unless its rule says that then it is over.
        """
        seen: set[Place] = set()
        told = []
        for reading in readings:
            place = (reading.rule.name, reading.key)
            seen.add(place)
            if self._has_turned(place, reading, now_ms):
                told.append(self._tell(place, reading, now_ms))
        self._turning_ms = {place: at for place, at in self._turning_ms.items() if place in seen}
        return told + self._end_gone(seen, now_ms)

    def _has_turned(self, place: Place, reading: Reading, now_ms: int) -> bool:
        """Whether it is other than was told, and has been for long enough."""
        rule, value = reading.rule, reading.value
        turns = rule.is_right(value) if place in self._open else rule.is_wrong(value)
        if not turns:
            self._turning_ms.pop(place, None)
            return False
        since_ms = self._turning_ms.setdefault(place, now_ms)
        return now_ms - since_ms >= rule.hold_s * 1000

    def _tell(self, place: Place, reading: Reading, now_ms: int) -> Alert:
        since_ms = self._turning_ms.pop(place)
        before = self._open.pop(place, None)
        if before is not None:
            return _resolved(before, reading.value, now_ms)
        message = reading.rule.text.format(subject=reading.subject, value=reading.value)
        self._open[place] = Alert(
            id=secrets.token_hex(8),
            state="raised",
            rule=reading.rule.name,
            key=reading.key,
            subject=reading.subject,
            message=message,
            value=reading.value,
            since_ms=since_ms,
            at_ms=now_ms,
        )
        return self._open[place]

    def _end_gone(self, seen: set[Place], now_ms: int) -> list[Alert]:
        gone = [
            place for place in self._open if place[0] in self._ends_when_gone and place not in seen
        ]
        return [_resolved(self._open.pop(place), None, now_ms) for place in gone]


def _resolved(raised: Alert, value: float | None, now_ms: int) -> Alert:
    lasted_s = (now_ms - raised.since_ms) / 1000
    message = f"Over after {lasted_s:.0f} s: {raised.message}"
    return replace(raised, state="resolved", message=message, value=value, at_ms=now_ms)
