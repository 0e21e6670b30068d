"""Databases for tests: SQLite and a real PostgreSQL, each migrated once and copied for every test.

A missing PostgreSQL fails the tests; `scripts/test_services.sh` starts it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

POSTGRESQL = os.environ.get(
    "DRUMLINE_TEST_POSTGRESQL", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
)
REDIS = os.environ.get("DRUMLINE_TEST_REDIS", "redis://127.0.0.1:6379/9")


def redis_database(number: int) -> str:
    """The URL of one of the Redis server's databases. Modules run at the same time, and each
    removes what it has left there, bindings of queues included: so each has its own.
    """
    return f"{REDIS.rpartition('/')[0]}/{number}"


@contextmanager
def postgresql_database(template: str | None = None) -> Iterator[str]:
    """The URL of an own database on the test server; dropped afterwards."""
    import sqlalchemy as sa

    name = f"drumline_test_{secrets.token_hex(6)}"
    server = sa.create_engine(POSTGRESQL, isolation_level="AUTOCOMMIT")
    copied = f" TEMPLATE {template}" if template else ""
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}{copied}")
    try:
        url = sa.make_url(POSTGRESQL).set(database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        server.dispose()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file at the newest revision, to be copied."""
    from drumline.database import open_database
    from drumline.database.migrate import upgrade

    path = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    database = open_database(f"sqlite:///{path}")
    upgrade(database)
    database.close()
    return path


@pytest.fixture(scope="session")
def migrated_postgresql() -> Iterator[str]:
    """The name of a PostgreSQL database at the newest revision, to be copied."""
    from drumline.database import open_database
    from drumline.database.migrate import upgrade

    with postgresql_database() as url:
        database = open_database(url)
        upgrade(database)
        database.close()
        yield url.rpartition("/")[2]


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_sqlite: Path) -> str:
    """The URL of an SQLite database of this test's own, migrated and empty."""
    path = tmp_path / "drumline.db"
    shutil.copy(migrated_sqlite, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgresql_url(migrated_postgresql: str) -> Iterator[str]:
    """The URL of a PostgreSQL database of this test's own, migrated and empty."""
    with postgresql_database(template=migrated_postgresql) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Both engines, one after the other."""
    url = request.getfixturevalue(f"{request.param}_url")
    assert isinstance(url, str)
    return url
