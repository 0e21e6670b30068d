"""What was tried, what it brought, and what became of it. Plain data; a terminal shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What became of a switch."""

    APPLIED = "applied"
    UNDONE = "undone"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Row:
    """One switch.

    Attributes:
        switch: Its name.
        outcome: What became of it.
        reason: Why, in words.
        before_s, after_s: Seconds a step without and with it: medians, of the slowest rank; None
            if it was not timed.
        gain: The part of a step's time that it saves, from paired measurements: 0.1 is a tenth.
        noise: Half the width of a 95 % interval around the gain.
        deviation: Largest relative deviation of losses and gradients from those without any switch.
        tolerance: What that may be at most.
        details: What else there is to say, such as graph breaks.
    """

    switch: str
    outcome: Outcome
    reason: str
    before_s: float | None = None
    after_s: float | None = None
    gain: float | None = None
    noise: float | None = None
    deviation: float | None = None
    tolerance: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All switches in the order they were tried.

    Attributes:
        rows: One for each.
        device: The device's name.
        ranks: Processes that decided together.
        seconds: How long it all took.
        before_s, after_s, gain: As in a row, for all that was applied together; None if nothing was
            applied or nothing was timed.
    """

    rows: tuple[Row, ...]
    device: str
    ranks: int
    seconds: float
    before_s: float | None = None
    after_s: float | None = None
    gain: float | None = None

    @property
    def applied(self) -> list[str]:
        """Names of the switches that are on now."""
        return [row.switch for row in self.rows if row.outcome is Outcome.APPLIED]

    def row(self, switch: str) -> Row:
        """The row of a switch.

        Raises:
            KeyError: If it was not tried.
        """
        for row in self.rows:
            if row.switch == switch:
                return row
        raise KeyError(switch)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as the event `performance_report` has it."""
        return asdict(self)

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.as_dict())

    def __str__(self) -> str:
        width = max((len(row.switch) for row in self.rows), default=0)
        lines = [f"{row.switch:<{width}}  {row.outcome}: {row.reason}" for row in self.rows]
        if self.gain is not None and self.before_s is not None and self.after_s is not None:
            before, after = 1000 * self.before_s, 1000 * self.after_s
            lines.append(f"together: {before:.3f} ms to {after:.3f} ms a step ({self.gain:.1%})")
        return "\n".join(lines)
