"""Transactions on both engines, against real databases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from drumline.database import Database, DatabaseError, open_database
from drumline.database.tables import hosts
from drumline.errors import EXIT_BAD_INPUT

HOST = {"name": "a", "inventory": {}, "first_seen_ms": 1, "last_seen_ms": 1}


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    yield opened
    opened.close()


def names(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.execute(sa.select(hosts.c.id).order_by(hosts.c.id)).scalars())


def test_what_is_written_is_seen_afterwards(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(hosts.insert().values(id="one", **HOST))
    assert names(database) == ["one"]


def test_an_exception_undoes_the_whole_transaction(database: Database) -> None:
    with pytest.raises(RuntimeError), database.writing() as connection:
        connection.execute(hosts.insert().values(id="one", **HOST))
        raise RuntimeError
    assert names(database) == []


def test_a_reader_is_not_blocked_by_a_writer(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(hosts.insert().values(id="one", **HOST))
        assert names(database) == []


def test_read_and_then_write_never_loses_an_update(database: Database) -> None:
    """Eight threads each add one 20 times to a number they read first."""
    with database.writing() as connection:
        connection.execute(hosts.insert().values(id="one", **HOST))

    def add() -> None:
        for _ in range(20):
            with database.writing() as connection:
                row = sa.select(hosts.c.last_seen_ms).where(hosts.c.id == "one").with_for_update()
                value = connection.execute(row).scalar_one()
                connection.execute(hosts.update().values(last_seen_ms=value + 1))

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as connection:
        assert connection.execute(sa.select(hosts.c.last_seen_ms)).scalar_one() == 161


@pytest.mark.parametrize("url", ["mysql://root@localhost/x", "sqlite://", "nonsense"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(DatabaseError, match="is not a database that can be used") as caught:
        open_database(url)
    assert caught.value.exit_code == EXIT_BAD_INPUT


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    database = open_database("postgresql+psycopg://me:secret@127.0.0.1:1/none")
    with pytest.raises(DatabaseError, match="does not answer") as caught, database.reading():
        pass
    assert "secret" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="cannot be made"):
        open_database(f"sqlite:///{tmp_path}/file/below/drumline.db")
