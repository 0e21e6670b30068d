"""Errors that only the service has. How each becomes an answer is told in `problems`."""

from __future__ import annotations

from typing import Any

from drumline.errors import BadInput, DrumlineError


class NotFound(BadInput):
    """What a path names is not there."""

    code = "not_found"


class TokenNeeded(BadInput):
    """The request has no token, or one that is not known."""

    code = "token_needed"


class NotAllowed(BadInput):
    """The token's role does not allow what was asked."""

    code = "not_allowed"


class UnknownHost(BadInput):
    """The request was sent to a name that is not this service's."""

    code = "unknown_host"


class ForeignOrigin(BadInput):
    """A page of another site asks for something."""

    code = "foreign_origin"


class TooLarge(BadInput):
    """The request's body is larger than anything that is asked for here."""

    code = "too_large"


class TooOften(BadInput):
    """The same is asked for too often; `retry_after_s` tells when to come again."""

    code = "too_often"

    def __init__(self, message: str, *, retry_after_s: int, **values: Any) -> None:
        super().__init__(
            message,
            remedy=f"Try again in {retry_after_s} s.",
            retry_after_s=retry_after_s,
            **values,
        )


class Overloaded(DrumlineError):
    """The service does as much of this as it may at a time."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(
            message, remedy=f"Try again in {retry_after_s} s.", retry_after_s=retry_after_s
        )


class TookTooLong(DrumlineError):
    """Work that was asked for was ended, as it took too long."""

    code = "took_too_long"
