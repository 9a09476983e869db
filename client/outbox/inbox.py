"""The inbox: what a message does to a database, and the note that it was done, in one database transaction."""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from tidelog.client.errors import IllegalStateError
from tidelog.client.outbox.sqlite_wal import warn_of_wal
from tidelog.client.record import ConsumerRecord

if TYPE_CHECKING:  # a program that has no connection of psycopg needs no psycopg
    import psycopg

C = TypeVar("C")


class _Inbox(ABC, Generic[C]):
    def __init__(self, name: str, *, header: str | None = None) -> None:
        self._name: Final = name
        self._header: Final = header

    def take(self, connection: C, record: ConsumerRecord) -> bool:
        """Return whether ``record`` is new here, and note it in the transaction that ``connection`` is in, which also
        does what the record asks for. Rolled back, it is new again. Raises ``IllegalStateError`` outside of a
        transaction, ``ValueError`` for a record without the header."""
        if self._commits_by_itself(connection):
            raise IllegalStateError(
                "expected a transaction, found a connection that commits each statement; begin one, so that the record "
                "and its effect are stored together"
            )
        return self._noted(connection, self._id(record)) == 1

    @abstractmethod
    def forget(self, connection: C, older_than_s: float) -> int:
        """Forget records taken longer ago than this, and return their number. One that comes again counts as new. Does
        not commit."""

    @abstractmethod
    def _noted(self, connection: C, message_id: str) -> int: ...

    @abstractmethod
    def _commits_by_itself(self, connection: C) -> bool: ...

    def _id(self, record: ConsumerRecord) -> str:
        if self._header is None:
            return f"{record.topic}:{record.partition}:{record.offset}"
        for name, value in record.headers:
            if name == self._header and value is not None:
                return value.decode(errors="backslashreplace")
        raise ValueError(
            f"{record.topic}:{record.partition}:{record.offset}: expected an id in the header {self._header}, found "
            f"{[name for name, _ in record.headers]}"
        )


class SqliteInbox(_Inbox[sqlite3.Connection]):
    """What the program ``name`` has already done to a SQLite database.

    A record is known by the value of ``header``, or else by topic, partition and offset. Before 3.51.3, SQLite can lose
    what several connections commit in ``journal_mode=WAL``.
    """

    _looked = False
    """Whether the journal mode was looked at."""

    @staticmethod
    def create(connection: sqlite3.Connection) -> None:
        """Create the table ``inbox`` if it does not exist. Commits."""
        connection.executescript("""
            CREATE TABLE IF NOT EXISTS inbox (
                name TEXT NOT NULL,
                id TEXT NOT NULL,
                taken_at REAL NOT NULL,
                PRIMARY KEY (name, id)
            ) WITHOUT ROWID;
            CREATE INDEX IF NOT EXISTS inbox_by_time ON inbox (name, taken_at);
        """)

    def forget(self, connection: sqlite3.Connection, older_than_s: float) -> int:
        return connection.execute(
            "DELETE FROM inbox WHERE name = ? AND taken_at < ?", (self._name, time.time() - older_than_s)
        ).rowcount

    def _noted(self, connection: sqlite3.Connection, message_id: str) -> int:
        if not self._looked:
            self._looked = True
            warn_of_wal(connection)
        return connection.execute(
            "INSERT OR IGNORE INTO inbox VALUES (?, ?, ?)", (self._name, message_id, time.time())
        ).rowcount

    def _commits_by_itself(self, connection: sqlite3.Connection) -> bool:
        by_itself = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
        return by_itself and not connection.in_transaction


class PostgresInbox(_Inbox["psycopg.Connection"]):
    """What the program ``name`` has already done to a PostgreSQL database.

    A record is known by the value of ``header``, or else by topic, partition and offset.
    """

    @staticmethod
    def create(connection: psycopg.Connection) -> None:
        """Create the table ``inbox`` if it does not exist. Commits."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('tidelog inbox'))")
            connection.execute("""
                CREATE TABLE IF NOT EXISTS inbox (
                    name text NOT NULL,
                    id text NOT NULL,
                    taken_at timestamptz NOT NULL DEFAULT now(),
                    PRIMARY KEY (name, id)
                );
                CREATE INDEX IF NOT EXISTS inbox_by_time ON inbox (name, taken_at);
            """)
        connection.commit()

    def forget(self, connection: psycopg.Connection, older_than_s: float) -> int:
        return connection.execute(
            "DELETE FROM inbox WHERE name = %s AND taken_at < now() - make_interval(secs => %s)",
            (self._name, older_than_s),
        ).rowcount

    def _noted(self, connection: psycopg.Connection, message_id: str) -> int:
        """Waits for another transaction that has noted the same id, and has not ended."""
        return connection.execute(
            "INSERT INTO inbox (name, id) VALUES (%s, %s) ON CONFLICT DO NOTHING", (self._name, message_id)
        ).rowcount

    def _commits_by_itself(self, connection: psycopg.Connection) -> bool:
        return connection.autocommit and connection.info.transaction_status == 0  # idle
