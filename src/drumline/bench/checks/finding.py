"""What a check says: one line with a status, a value for programs, and a remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a check ended. A `fail` means that training will not work as asked."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line of the result.

    Attributes:
        name: What was checked.
        status: How it ended.
        text: What was found, with numbers; of a skipped check why it was.
        value: The same for programs; units are in its keys or in the text.
        remedy: What to do about a warning or failure.
        group: Where the line belongs: "machine", "host", "device", "ranks" or "model".
        seconds: How long the check took.
    """

    name: str
    status: Status
    text: str
    value: Any = None
    remedy: str = ""
    group: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data."""
        return {**asdict(self), "status": self.status.value, "seconds": round(self.seconds, 3)}


def passed(name: str, text: str, value: Any = None) -> Finding:
    """All is well."""
    return Finding(name, Status.PASS, text, value)


def warned(name: str, text: str, remedy: str, value: Any = None) -> Finding:
    """Training will work, but worse than it could."""
    return Finding(name, Status.WARN, text, value, remedy)


def failed(name: str, text: str, remedy: str, value: Any = None) -> Finding:
    """Training will not work."""
    return Finding(name, Status.FAIL, text, value, remedy)


def skipped(name: str, reason: str) -> Finding:
    """Not checked."""
    return Finding(name, Status.SKIPPED, reason)


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings there are of each status."""
    listed = list(findings)
    return {status.value: sum(f.status is status for f in listed) for status in Status}
