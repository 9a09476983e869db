"""The inbox of both databases: a record's effect once, in the transaction that notes the record."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tidelog import ConsumerRecord, PostgresInbox, SqliteInbox, SqliteOutbox
from tidelog.client.errors import IllegalStateError
from tidelog.client.outbox import sqlite_wal

Connection = sqlite3.Connection | psycopg.Connection


@pytest.mark.parametrize(
    ("release", "loses"),
    [("3.40.1", True), ("3.44.5", True), ("3.44.6", False), ("3.45.0", True), ("3.50.6", True), ("3.50.7", False),
     ("3.51.2", True), ("3.51.3", False), ("3.52.0", False), ("4.0.0", False)],
)  # fmt: skip
def test_a_release_that_can_lose_commits_is_warned_of(
    release: str, loses: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "_told", set())
    major, minor, patch = map(int, release.split("."))
    connection = sqlite3.connect(tmp_path / "billing.db")
    sqlite_wal.warn_of_wal(connection, (major, minor, patch))
    assert not caplog.messages, "another mode loses nothing"
    connection.execute("PRAGMA journal_mode=WAL")
    for _ in range(2):
        sqlite_wal.warn_of_wal(connection, (major, minor, patch))
    connection.close()
    assert [release in text for text in caplog.messages] == [True] * loses


@pytest.mark.parametrize("which", ["inbox", "outbox"])
def test_who_uses_such_a_release_is_warned(
    which: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "_told", set())
    monkeypatch.setattr(sqlite_wal, "loses_commits", lambda version: True)
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    SqliteInbox.create(connection)
    SqliteOutbox.create(connection)
    if which == "inbox":
        assert SqliteInbox("billing").take(connection, record(1))
    else:
        outbox = SqliteOutbox(path)
        outbox.identity()
        outbox.close()
    connection.close()
    assert "can lose committed transactions" in caplog.text


class Database:
    """Connections to one database, and inboxes for them."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._opened: list[Connection] = []
        connection = self.connect()
        if isinstance(connection, sqlite3.Connection):
            SqliteInbox.create(connection)
        else:
            PostgresInbox.create(connection)
        connection.execute("CREATE TABLE effect (n integer)")
        connection.commit()

    def connect(self) -> Connection:
        self._opened.append(self._connect())
        return self._opened[-1]

    def take(self, connection: Connection, record: ConsumerRecord, name: str = "billing", header: str = "id") -> bool:
        if isinstance(connection, sqlite3.Connection):
            return SqliteInbox(name, header=header or None).take(connection, record)
        return PostgresInbox(name, header=header or None).take(connection, record)

    def effects(self) -> list[int]:
        return [row[0] for row in self.connect().execute("SELECT n FROM effect ORDER BY n")]

    def close(self) -> None:
        for connection in self._opened:
            connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        path = tmp_path / "billing.db"
        made = Database(lambda: sqlite3.connect(path, timeout=30, check_same_thread=False))
    else:
        conninfo = request.getfixturevalue("conninfo")
        made = Database(lambda: psycopg.connect(conninfo))
    yield made
    made.close()


def record(offset: int, message_id: bytes | None = None) -> ConsumerRecord:
    headers = () if message_id is None else (("other", b"1"), ("id", message_id))
    return ConsumerRecord(offset, 0, b"k", b"v", headers, "orders", 0, 0)


def test_a_record_is_new_once(database: Database) -> None:
    connection = database.connect()
    for at in (record(0, b"a"), record(1, b"b"), record(2, b"a"), record(0, b"a")):
        if database.take(connection, at):
            connection.execute(f"INSERT INTO effect VALUES ({at.offset})")
        connection.commit()
    assert database.effects() == [0, 1]
    assert database.take(connection, record(0, b"a"), name="shipping"), "another program has not done it"
    assert database.take(connection, record(7), header="")
    assert not database.take(connection, record(7, b"x"), header=""), "known by its place"
    connection.commit()
    assert not database.take(database.connect(), record(9, b"b"))


def test_rolled_back_it_is_new_again(database: Database) -> None:
    connection = database.connect()
    assert database.take(connection, record(0, b"a"))
    connection.execute("INSERT INTO effect VALUES (0)")
    connection.rollback()
    assert database.effects() == []
    assert database.take(connection, record(0, b"a"))


def test_two_at_the_same_time_are_one(database: Database) -> None:
    """The second waits for the first, then it is told."""
    first, second = database.connect(), database.connect()
    told: list[bool] = []
    assert database.take(first, record(0, b"a"))
    other = threading.Thread(target=lambda: told.append(database.take(second, record(0, b"a"))), daemon=True)
    other.start()
    other.join(0.2)
    assert told == []
    first.commit()
    other.join(60)
    assert told == [False]


def test_what_cannot_be_noted_is_refused(database: Database) -> None:
    connection = database.connect()
    with pytest.raises(ValueError, match="orders:0:3: expected an id in the header id, found"):
        database.take(connection, record(3))
    connection.commit()
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None
    else:
        connection.autocommit = True
    with pytest.raises(IllegalStateError, match="expected a transaction"):
        database.take(connection, record(0, b"a"))
    connection.execute("BEGIN")
    assert database.take(connection, record(0, b"a"))
    connection.execute("ROLLBACK")


def test_old_records_are_forgotten(database: Database) -> None:
    connection = database.connect()
    assert database.take(connection, record(0, b"a"))
    connection.commit()
    deadline = time.monotonic() + 60
    for older_than_s, found in ((3_600.0, 0), (0.0, 1)):
        while True:
            assert time.monotonic() < deadline
            if isinstance(connection, sqlite3.Connection):
                forgotten = SqliteInbox("billing").forget(connection, older_than_s)
            else:
                forgotten = PostgresInbox("billing").forget(connection, older_than_s)
            connection.commit()
            if forgotten == found:
                break
    assert database.take(connection, record(0, b"a")), "as new"
