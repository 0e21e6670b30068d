"""Machines and their devices."""

from __future__ import annotations

import sqlalchemy as sa

from drumline.database.tables.base import Integer, metadata

hosts = sa.Table(
    "hosts",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("inventory", sa.JSON, nullable=False),  # Machine.as_dict() of the last look
    sa.Column("problem", sa.Text),  # why its devices cannot be read, in words
    sa.Column("first_seen_ms", sa.BigInteger, nullable=False),
    sa.Column("last_seen_ms", sa.BigInteger, nullable=False),
)

# A number for each device, so that millions of readings need not repeat its UUID.
devices = sa.Table(
    "devices",
    metadata,
    sa.Column("id", Integer, primary_key=True, autoincrement=True),
    sa.Column("uuid", sa.String(96), nullable=False, unique=True),
    sa.Column("host_id", sa.ForeignKey("hosts.id"), nullable=False, index=True),
    sa.Column("index", sa.Integer, nullable=False),
    sa.Column("name", sa.String(255)),
    sa.Column("memory_total_bytes", sa.BigInteger),
    sa.Column("simulated", sa.Boolean, nullable=False),
    sa.Column("first_seen_ms", sa.BigInteger, nullable=False),
    sa.Column("last_seen_ms", sa.BigInteger, nullable=False),
)
