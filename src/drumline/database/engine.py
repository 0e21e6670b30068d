"""Open the database and run transactions, alike on SQLite and PostgreSQL.

Two kinds of transaction:

- `reading()`: sees one consistent state, blocks nobody.
- `writing()`: on SQLite BEGIN IMMEDIATE, so that a transaction that reads and then writes cannot
  fail half-way because another wrote in between; on PostgreSQL an ordinary one, in which rows that
  are decided on are taken with FOR UPDATE.

Times are integers: milliseconds since 1970 (UTC). Nothing slow happens inside a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from drumline.database.turns import Turns
from drumline.errors import EXIT_BAD_INPUT, DrumlineError

BUSY_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 5
SILENCE_MS = 15_000
"""A PostgreSQL that does not acknowledge what was sent for so long counts as gone."""
_WRITES = "drumline_writes"
_UNREACHABLE = (OperationalError, InterfaceError)


class DatabaseError(DrumlineError):
    """The database cannot be reached, or is not one that can be used."""

    code = "database"


class UnusableDatabase(DatabaseError):
    """The URL is none that a database can have."""

    exit_code = EXIT_BAD_INPUT


def now_ms() -> int:
    """The wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


class Database:
    """A connection pool with the two kinds of transaction. Safe to share among threads."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.turns = Turns()
        """Whose turn it is to write, on SQLite."""

    @property
    def is_sqlite(self) -> bool:
        """Whether the engine is SQLite: one writer at a time, no row locks."""
        return self.engine.dialect.name == "sqlite"

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads.

        Raises:
            DatabaseError: If the database cannot be reached.
        """
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed at the end, or undone by an exception.

        Raises:
            DatabaseError: If the database cannot be reached, or stayed locked too long.
        """
        with self._turn(), self._transaction(writes=True) as connection:
            yield connection

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """On SQLite, which has one writer at a time, those of this process come in turn."""
        if not self.is_sqlite:
            yield
            return
        if not self.turns.acquire(BUSY_TIMEOUT_MS / 1000):
            raise DatabaseError(
                f"The database {self.url} stayed locked for {BUSY_TIMEOUT_MS / 1000:.0f} s.",
                remedy="Another transaction of this process takes too long.",
                url=self.url,
            )
        try:
            yield
        finally:
            self.turns.release()

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        try:
            with (
                self.engine.connect().execution_options(**{_WRITES: writes}) as connection,
                connection.begin(),
            ):
                yield connection
        except DBAPIError as error:
            if isinstance(error, _UNREACHABLE) or error.connection_invalidated:
                raise _unreachable(self.url, error) from error
            raise
        except sa.exc.TimeoutError as error:  # all connections of the pool hang
            raise _unreachable(self.url, error) from error

    def close(self) -> None:
        """Give all pooled connections back."""
        self.engine.dispose()


def open_database(url: str) -> Database:
    """Open the database at `url`; connects only when first used.

    Raises:
        UnusableDatabase: If the URL is none of SQLite's or PostgreSQL's.
        DatabaseError: If the folder of an SQLite file cannot be made.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise _unusable(url) from error
    if parsed.get_backend_name() == "sqlite":
        return Database(_sqlite(parsed))
    if parsed.get_backend_name() == "postgresql":
        driver = "postgresql+psycopg"
        engine = sa.create_engine(
            parsed.set(drivername=driver),
            pool_pre_ping=True,
            pool_size=10,
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_S,
                "tcp_user_timeout": SILENCE_MS,
                "keepalives_idle": CONNECT_TIMEOUT_S,
                "keepalives_interval": CONNECT_TIMEOUT_S,
            },
        )
        return Database(engine)
    raise _unusable(parsed.render_as_string(hide_password=True))


def _sqlite(url: sa.URL) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise _unusable("sqlite:// without a file")
    assert url.database is not None
    try:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(
            f"The folder of {url.database} cannot be made: {error.strerror}.",
            remedy="Choose another with DRUMLINE_HOME or DRUMLINE_DATABASE_URL.",
            path=url.database,
        ) from error
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
    sa.event.listen(engine, "connect", _on_connect)
    sa.event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_MS}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _unusable(url: str) -> UnusableDatabase:
    return UnusableDatabase(
        f"{url} is not a database that can be used.",
        remedy="Set DRUMLINE_DATABASE_URL to sqlite:////path/to/file.db or "
        "postgresql+psycopg://user@host/name.",
    )


def _unreachable(url: str, error: DBAPIError | sa.exc.TimeoutError) -> DatabaseError:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    return DatabaseError(
        f"The database {url} does not answer: {reason}.",
        remedy="See that it runs and that DRUMLINE_DATABASE_URL is right.",
        url=url,
    )
