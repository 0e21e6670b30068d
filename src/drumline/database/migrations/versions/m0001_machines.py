"""Hosts and their devices."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "hosts",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("inventory", sa.JSON, nullable=False),
        sa.Column("problem", sa.Text),
        sa.Column("first_seen_ms", sa.BigInteger, nullable=False),
        sa.Column("last_seen_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_hosts"),
    )
    integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "devices",
        sa.Column("id", integer, autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(96), nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("name", sa.String(255)),
        sa.Column("memory_total_bytes", sa.BigInteger),
        sa.Column("simulated", sa.Boolean, nullable=False),
        sa.Column("first_seen_ms", sa.BigInteger, nullable=False),
        sa.Column("last_seen_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
        sa.UniqueConstraint("uuid", name="uq_devices_uuid"),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_devices_host_id"),
    )
    op.create_index("ix_devices_host_id", "devices", ["host_id"])


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("devices")
    op.drop_table("hosts")
