"""What all answers share: times, and how values of the inside are shown outside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from drumline.errors import BadInput
from drumline.monitoring.readings import iso

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""A moment: ISO 8601 in UTC with milliseconds."""

LATEST_MS = 253_370_764_800_000  # the year 9999 begins, beyond which no moment can be written


class View(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


class Body(BaseModel):
    """Base of all requests: a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def shown(time_ms: int) -> str:
    """Milliseconds since 1970 as a time."""
    return iso(time_ms)


def shown_if(time_ms: int | None) -> str | None:
    """The same; None stays None."""
    return None if time_ms is None else iso(time_ms)


def milliseconds(moment: datetime, field: str) -> int:
    """A moment as milliseconds since 1970; one without a zone is in UTC.

    Raises:
        BadInput: If it lies before 1970.
    """
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    try:
        found = round(aware.timestamp() * 1000)
    except (OverflowError, ValueError):
        found = -1
    if not 0 <= found < LATEST_MS:
        raise BadInput(
            f"{field} is not a moment that can be.",
            remedy="Give ISO 8601, for example 2026-01-31T12:00:00Z.",
            field=field,
        )
    return found


def is_text(text: str) -> bool:
    """Whether databases and UTF-8 take it: no character 0, no half of a surrogate pair."""
    return not any(char == "\x00" or "\ud800" <= char <= "\udfff" for char in text)


def _plain(text: str) -> str:
    if not is_text(text):
        raise ValueError("is no text: it holds a character 0, or half of a pair")
    return text


Plain = Annotated[str, AfterValidator(_plain)]
"""Text that can be stored."""
