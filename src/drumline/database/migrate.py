"""Bring a database to the tables of this version, and say whether it is there."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from drumline.database.engine import Database, DatabaseError
from drumline.database.tables import metadata

MIGRATIONS = Path(__file__).with_name("migrations")


def upgrade(database: Database, revision: str = "head") -> None:
    """Apply the migrations that are missing, each in a transaction of its own.

    Two processes that start together do not collide: the second waits, and finds nothing to do.

    Raises:
        DatabaseError: If the database cannot be reached, or was written by a newer version.
    """
    with database.writing() as connection:
        if not database.is_sqlite:  # SQLite's BEGIN IMMEDIATE is the lock already
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7205759403)")
        present = MigrationContext.configure(connection).get_current_revision()
        config = _config()
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        if present is not None and present not in known:
            raise DatabaseError(
                f"The database {database.url} is at revision {present}, "
                "which this version of Drumline does not know.",
                remedy="Use the version that wrote it, or a newer one.",
                revision=present,
            )
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def downgrade(database: Database, revision: str) -> None:
    """Undo migrations down to `revision` ("base" undoes all). For development."""
    with database.writing() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def differences(database: Database) -> list[str]:
    """What the database's tables lack or have more than `tables` says; empty where equal."""
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [str(difference) for difference in compare_metadata(context, metadata)]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
