"""Who asks, and what that allows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a token allows: to look, or to do everything."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Identity:
    """Who asks: the token's name, which is also the owner of the trainings it makes.

    `token_id` is None where none was needed: on this machine, without tokens.
    """

    name: str
    role: Role
    token_id: str | None = None

    def may(self, needed: Role) -> bool:
        """Whether this identity's role includes `needed`."""
        return self.role is Role.OPERATOR or needed is Role.VIEWER


LOCAL = Identity("local", Role.OPERATOR)
"""Whoever asks on this machine, where no token is needed."""
