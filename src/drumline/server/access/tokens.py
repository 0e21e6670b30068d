"""Tokens and browser sessions in the database, as SHA-256 of 256 random bits.

A slow hash, as passwords need, would add nothing: what has 256 bits of chance cannot be guessed.
Looking a hash up in an index tells at most about the hash, from which no token can be made; it is
compared in constant time all the same.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from drumline.database import Database, now_ms
from drumline.database.tables import sessions, tokens
from drumline.errors import BadInput
from drumline.server.access.identity import Identity, Role
from drumline.server.errors import NotFound

SESSION_MS = 12 * 3_600_000
USED_EVERY_MS = 60_000
LONGEST_NAME = 64
PREFIX = "drumline_"
"""Begins every token, so that scanners of sources and logs know one when they see it."""


@dataclass(frozen=True)
class Token:
    """A token as lists show it; what it is can be seen only when it is made."""

    id: str
    name: str
    role: Role
    created_ms: int
    used_ms: int | None
    revoked_ms: int | None


class Tokens:
    """All tokens and sessions of one database. Safe to share among threads."""

    def __init__(self, database: Database, clock: Callable[[], int] = now_ms) -> None:
        self._database = database
        self._clock = clock

    def create(self, name: str, role: Role) -> tuple[Token, str]:
        """A new token, and its secret, which is kept nowhere.

        Raises:
            BadInput: If the name is empty, too long, or not plain text.
        """
        if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
            raise BadInput(
                f"{name!r} cannot be the name of a token.",
                remedy=f"Give 1 to {LONGEST_NAME} plain characters.",
                field="name",
            )
        secret = PREFIX + secrets.token_urlsafe(32)
        made = Token(secrets.token_hex(4), name, role, self._clock(), None, None)
        with self._database.writing() as connection:
            connection.execute(
                sa.insert(tokens).values(
                    id=made.id,
                    name=name,
                    role=role.value,
                    hash=_hash(secret),
                    created_ms=made.created_ms,
                )
            )
        return made, secret

    def list(self) -> list[Token]:
        """All tokens, the oldest first, those revoked among them."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(tokens).order_by(tokens.c.created_ms, tokens.c.id))
            return [_token(row) for row in rows]

    def any(self) -> bool:
        """Whether there is a token that lets somebody in."""
        query = sa.select(tokens.c.id).where(tokens.c.revoked_ms.is_(None)).limit(1)
        with self._database.reading() as connection:
            return connection.execute(query).first() is not None

    def revoke(self, token_id: str) -> None:
        """End a token and the sessions that began with it.

        Raises:
            NotFound: If there is no token of that id.
        """
        with self._database.writing() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.token_id == token_id))
            changed = connection.execute(
                sa.update(tokens).where(tokens.c.id == token_id).values(revoked_ms=self._clock())
            )
            if changed.rowcount != 1:
                raise NotFound(f"There is no token {token_id}.", remedy="See: drumline token list")

    def who(self, secret: str) -> Identity | None:
        """Whose token this is; None where it is none, or revoked."""
        hashed = _hash(secret)
        query = sa.select(tokens).where(tokens.c.hash == hashed, tokens.c.revoked_ms.is_(None))
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or not hmac.compare_digest(row.hash, hashed):
            return None
        self._note_use(row)
        return Identity(row.name, Role(row.role), row.id)

    def open_session(self, identity: Identity) -> str:
        """What a browser's cookie is to hold, for `SESSION_MS` from now."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        with self._database.writing() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.until_ms <= now))
            connection.execute(
                sa.insert(sessions).values(
                    hash=_hash(secret),
                    token_id=identity.token_id,
                    created_ms=now,
                    until_ms=now + SESSION_MS,
                )
            )
        return secret

    def whose_session(self, secret: str) -> Identity | None:
        """Who is logged in with this cookie; None where nobody is."""
        hashed = _hash(secret)
        query = (
            sa.select(tokens, sessions.c.hash.label("session"))
            .join(sessions, sessions.c.token_id == tokens.c.id)
            .where(
                sessions.c.hash == hashed,
                sessions.c.until_ms > self._clock(),
                tokens.c.revoked_ms.is_(None),
            )
        )
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or not hmac.compare_digest(row.session, hashed):
            return None
        return Identity(row.name, Role(row.role), row.id)

    def close_session(self, secret: str) -> None:
        """Log out."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.hash == _hash(secret)))

    def _note_use(self, row: Any) -> None:
        now = self._clock()
        if row.used_ms is not None and now - row.used_ms < USED_EVERY_MS:
            return
        with self._database.writing() as connection:
            connection.execute(sa.update(tokens).where(tokens.c.id == row.id).values(used_ms=now))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: Any) -> Token:
    return Token(row.id, row.name, Role(row.role), row.created_ms, row.used_ms, row.revoked_ms)
