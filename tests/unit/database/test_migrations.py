"""Every migration up, compared with the tables, and down again, on both engines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from drumline.database import Database, DatabaseError, open_database
from drumline.database.migrate import _config, differences, downgrade, upgrade
from service_databases import postgresql_database

REVISIONS = [
    script.revision
    for script in reversed(list(ScriptDirectory.from_config(_config()).walk_revisions()))
]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        yield open_database(f"sqlite:///{tmp_path}/empty.db")
        return
    with postgresql_database() as url:
        database = open_database(url)
        yield database
        database.close()


def tables(database: Database) -> set[str]:
    with database.reading() as connection:
        return set(sa.inspect(connection).get_table_names()) - {"alembic_version"}


def test_up_equals_the_tables_and_down_leaves_nothing(empty: Database) -> None:
    seen = [tables(empty)]
    for revision in REVISIONS:
        upgrade(empty, revision)
        seen.append(tables(empty))
    assert differences(empty) == []
    for revision in [*reversed(REVISIONS[:-1]), "base"]:
        seen.pop()
        downgrade(empty, revision)
        assert tables(empty) == seen[-1]
    assert tables(empty) == set()


def test_two_that_start_together_do_not_collide(empty: Database) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            upgrade(empty)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert differences(empty) == []


def test_a_database_of_a_newer_version_is_refused(empty: Database) -> None:
    upgrade(empty)
    with empty.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseError, match="9999"):
        upgrade(empty)
