"""The outbox of a SQLite database.

SQLite has one writer at a time, so ``AUTOINCREMENT`` numbers are assigned in commit order: a reader that sees a row
sees every earlier row that will ever exist. A number used by a rolled-back transaction is assigned again.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.client.errors import IllegalStateError
from tidelog.client.outbox.rows import OutboxRow, row_of
from tidelog.client.outbox.sqlite_wal import warn_of_wal

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    aggregatetype TEXT NOT NULL,
    aggregateid TEXT NOT NULL,
    type TEXT NOT NULL,
    payload BLOB,
    headers TEXT,
    created_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS outbox_identity (id TEXT NOT NULL);
"""
"""The columns are Debezium's, plus ``seq`` for the order and ``headers``, a JSON object of strings."""
_LOOK_S: Final = 0.05


class SqliteOutbox:
    """The outbox in the database file ``path``, for :class:`tidelog.OutboxRelay`. The relay needs its own connection;
    ``journal_mode=WAL`` lets programs write while it reads, but before 3.51.3, SQLite can lose what several connections
    commit in that mode."""

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_file():
            raise IllegalStateError(f"expected a database at {path}, found no file; its program creates it")
        self._path = path
        self._open: sqlite3.Connection | None = None
        self._version = -1

    @staticmethod
    def create(connection: sqlite3.Connection) -> None:
        """Create the outbox's tables if they do not exist. Commits."""
        connection.executescript(SCHEMA)
        with connection:
            if connection.execute("SELECT count(*) FROM outbox_identity").fetchone() == (0,):
                connection.execute("INSERT INTO outbox_identity VALUES (?)", (str(uuid.uuid4()),))

    @staticmethod
    def put(
        connection: sqlite3.Connection,
        aggregatetype: str,
        aggregateid: str,
        event_type: str,
        payload: bytes | None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Add a message to the transaction that ``connection`` is in. Returns its id. The message is sent once the
        transaction is committed, and never if it is rolled back."""
        message_id = str(uuid.uuid4())
        connection.execute(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, headers, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                message_id, aggregatetype, aggregateid, event_type, payload, json.dumps(headers) if headers else None,
                time.time_ns() // 1_000_000,
            ),
        )  # fmt: skip
        return message_id

    def close(self) -> None:
        """Close the relay's connection to the database; the next call opens another one."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def identity(self) -> str:
        """Return an id that distinguishes this database from a replacement. Raises ``IllegalStateError`` without an
        outbox."""
        try:
            row = self._connection().execute("SELECT id FROM outbox_identity").fetchone()
        except sqlite3.OperationalError as error:
            raise IllegalStateError(
                f"{self._path}: expected the tables of SqliteOutbox.create(), found none: {error}"
            ) from None
        if row is None:
            raise IllegalStateError(
                f"{self._path}: expected an id in outbox_identity, found none; call SqliteOutbox.create()"
            )
        return str(row[0])

    def last(self) -> int:
        """Return the highest ``seq`` that was ever committed; 0 before the first."""
        row = self._connection().execute("SELECT seq FROM sqlite_sequence WHERE name = 'outbox'").fetchone()
        return 0 if row is None else int(row[0])

    def deleted(self) -> int:
        """Return the highest ``seq`` up to which rows were deleted. No number is left out, so it is before the first
        row."""
        row = self._connection().execute("SELECT min(seq) FROM outbox").fetchone()
        return self.last() if row[0] is None else int(row[0]) - 1

    def last_up_to(self, seq: int) -> tuple[int, str] | None:
        """Return ``seq`` and id of the last row that still exists up to this one."""
        query = "SELECT seq, id FROM outbox WHERE seq <= ? ORDER BY seq DESC LIMIT 1"
        row = self._connection().execute(query, (seq,)).fetchone()
        return row and (int(row[0]), str(row[1]))

    def after(self, seq: int, most: int) -> list[OutboxRow]:
        """Return the next rows in order. Raises ``IllegalStateError`` for headers that are not a JSON object of
        strings."""
        rows = self._connection().execute(
            "SELECT seq, id, aggregatetype, aggregateid, type, payload, headers, created_at "
            "FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?",
            (seq, most),
        )
        return [row_of(*row) for row in rows]

    def delete(self, up_to: int) -> None:
        """Delete the rows that were sent. If a writer holds the database now, they are deleted later."""
        try:
            self._connection().execute("DELETE FROM outbox WHERE seq <= ?", (up_to,))
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise

    def wait(self, seconds: float) -> None:
        """Wait until another connection has committed something, at most this long."""
        deadline = time.monotonic() + seconds
        while self._data_version() == self._version and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left))
        self._version = self._data_version()

    def to_renumber(self, by: int) -> str:
        """Return the statements that give all rows numbers above ``by``, and new rows higher ones."""
        return (
            f"UPDATE sqlite_sequence SET seq = {2 * by} WHERE name = 'outbox'; "
            f"UPDATE outbox SET seq = seq + {by} WHERE seq <= {by}"
        )

    def _data_version(self) -> int:
        return int(self._connection().execute("PRAGMA data_version").fetchone()[0])

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = sqlite3.connect(self._path, timeout=30.0, isolation_level=None, check_same_thread=False)
            warn_of_wal(self._open)
        return self._open
