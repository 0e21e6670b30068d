"""Tokens that let somebody in, and browsers that are logged in with one. Only hashes are kept."""

from __future__ import annotations

import sqlalchemy as sa

from drumline.database.tables.base import metadata

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False, unique=True),  # SHA-256, hexadecimal
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("used_ms", sa.BigInteger),  # to the minute
    sa.Column("revoked_ms", sa.BigInteger),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("hash", sa.String(64), primary_key=True),  # of what the cookie holds
    sa.Column("token_id", sa.ForeignKey("tokens.id"), nullable=False, index=True),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("until_ms", sa.BigInteger, nullable=False, index=True),
)
