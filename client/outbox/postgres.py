"""The outbox of a PostgreSQL database. Transactions commit in any order there, so a row may appear behind later ones.

A trigger draws ``seq`` for a row after its transaction has an id. :meth:`PostgresOutbox.after` first notes the last
number drawn, then draws a transaction id itself. When every transaction with a lower id has ended
(``pg_snapshot_xmin``), all rows up to the noted number are there or never will be.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import time
import types
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from tidelog.client.errors import IllegalStateError
from tidelog.client.outbox.rows import DatabaseAwayError, OutboxRow, row_of

if TYPE_CHECKING:  # loaded with the first outbox: programs that have none need no psycopg
    import psycopg

LOOK_S: Final = 0.05
"""How often to look for new rows. A NOTIFY by each writer would make all commits of the server take turns."""
BARRIER_LOOK_S: Final = 0.01
BARRIER_LOG_S: Final = 10.0
"""After this long, and again and again, the log names the transaction that the relay is waiting for."""
log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


def _driver() -> types.ModuleType:
    """Raises ``ModuleNotFoundError``, which says what to install."""
    try:
        return importlib.import_module("psycopg")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "PostgresOutbox needs a package that is not installed: pip install 'tidelog[postgres]'"
        ) from None


def _connected(
    method: Callable[Concatenate[PostgresOutbox, P], R],
) -> Callable[Concatenate[PostgresOutbox, P], R]:
    @functools.wraps(method)
    def call(self: PostgresOutbox, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except _driver().OperationalError as error:
            if not self._forget_a_lost_connection():
                raise
            raise DatabaseAwayError(str(error)) from error

    return call


class PostgresOutbox:
    """The outbox in the database of ``conninfo`` (PostgreSQL 14 or later, the primary), for
    :class:`tidelog.OutboxRelay`. Its tables are in the first schema of the connection's search path."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._open: psycopg.Connection | None = None
        self._decided = 0
        """All rows up to this number are there, or never will be."""
        self._barrier: tuple[int, int] | None = None
        """The number to decide next, and the id below which all transactions must have ended."""
        self._say_at = 0.0
        self._connection()

    @staticmethod
    def create(connection: psycopg.Connection) -> None:
        """Create the outbox's tables, sequence and trigger if they do not exist. Commits."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('tidelog outbox'))")
            if connection.execute("SELECT to_regclass('outbox_identity') IS NULL").fetchone() == (True,):
                connection.execute("""
                    CREATE TABLE outbox (
                        seq bigint PRIMARY KEY,
                        id uuid NOT NULL UNIQUE,
                        aggregatetype text NOT NULL,
                        aggregateid text NOT NULL,
                        type text NOT NULL,
                        payload bytea,
                        headers text,
                        created_at timestamptz NOT NULL DEFAULT now()
                    );
                    CREATE SEQUENCE outbox_seq OWNED BY outbox.seq;
                    CREATE FUNCTION outbox_number() RETURNS trigger LANGUAGE plpgsql AS $$
                    BEGIN
                        PERFORM pg_current_xact_id();  -- an id before a number: the relay relies on it
                        NEW.seq := nextval(format('%I.outbox_seq', TG_TABLE_SCHEMA)::regclass);
                        RETURN NEW;
                    END $$;
                    CREATE TRIGGER outbox_number BEFORE INSERT ON outbox
                        FOR EACH ROW EXECUTE FUNCTION outbox_number();
                    CREATE TABLE outbox_identity (id uuid NOT NULL, deleted bigint NOT NULL);
                    INSERT INTO outbox_identity VALUES (gen_random_uuid(), 0);
                """)
        connection.commit()

    @staticmethod
    def put(
        connection: psycopg.Connection,
        aggregatetype: str,
        aggregateid: str,
        event_type: str,
        payload: bytes | None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Add a message to the transaction that ``connection`` is in. Returns its id. The message is sent once the
        transaction is committed, and never if it is rolled back. Call it after the write that locks the aggregate."""
        message_id = uuid.uuid4()
        connection.execute(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, headers) "
            "VALUES (%s, %s, %s, %s, %s, %s)",
            (message_id, aggregatetype, aggregateid, event_type, payload, json.dumps(headers) if headers else None),
        )
        return str(message_id)

    def close(self) -> None:
        """Close the relay's connection to the database; the next call opens another one."""
        if self._open is not None:
            self._open.close()
        self._open, self._barrier, self._decided = None, None, 0

    @_connected
    def identity(self) -> str:
        """Return an id that distinguishes this database from a replacement. Raises ``IllegalStateError`` without an
        outbox, and if the order of its rows is not certain."""
        connection = self._connection()
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            raise IllegalStateError("expected the primary server, found a standby; a relay cannot work there")
        try:
            row = connection.execute("SELECT id::text FROM outbox_identity").fetchone()
            good = connection.execute(
                "SELECT FROM pg_trigger, pg_sequence WHERE tgrelid = 'outbox'::regclass AND tgname = 'outbox_number' "
                "AND tgenabled IN ('O', 'A') AND seqrelid = 'outbox_seq'::regclass AND seqcache = 1 "
                "AND seqincrement = 1 AND NOT seqcycle"
            ).fetchone()
        except _driver().errors.UndefinedTable as error:
            raise IllegalStateError(
                f"expected the tables of PostgresOutbox.create() in the search path, found none: {error}"
            ) from None
        if row is None or good is None:
            raise IllegalStateError(
                "expected an id in outbox_identity, the trigger outbox_number and a sequence outbox_seq without cache, "
                "as PostgresOutbox.create() makes them; undo what was altered"
            )
        return str(row[0])

    @_connected
    def last(self) -> int:
        """Return the last number drawn; 0 before the first."""
        return self._last()

    @_connected
    def deleted(self) -> int:
        """Return the highest ``seq`` up to which the relay has deleted rows."""
        return self._number("SELECT deleted FROM outbox_identity")

    @_connected
    def last_up_to(self, seq: int) -> tuple[int, str] | None:
        """Return ``seq`` and id of the last row that still exists up to this one."""
        row = (
            self._connection()
            .execute("SELECT seq, id::text FROM outbox WHERE seq <= %s ORDER BY seq DESC LIMIT 1", (seq,))
            .fetchone()
        )
        return row and (int(row[0]), str(row[1]))

    @_connected
    def after(self, seq: int, most: int) -> list[OutboxRow] | None:
        """Return the next rows in order; None while an open transaction may add a row before them. Raises
        ``IllegalStateError`` for headers that are not a JSON object of strings."""
        while not (rows := self._rows(seq, most)):
            if self._barrier is None:
                last = self._last()
                if last <= self._decided:
                    break
                self._barrier = last, self._number("SELECT pg_current_xact_id()::text::bigint")
                self._say_at = time.monotonic() + BARRIER_LOG_S
            last, transaction_id = self._barrier
            if self._number("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint") < transaction_id:
                self._say_whose()
                return None
            self._barrier, self._decided = None, last
        return rows

    @_connected
    def delete(self, up_to: int) -> None:
        """Delete the rows that were sent."""
        with self._connection().transaction():
            self._connection().execute("DELETE FROM outbox WHERE seq <= %s", (up_to,))
            self._connection().execute("UPDATE outbox_identity SET deleted = greatest(deleted, %s)", (up_to,))

    @_connected
    def wait(self, seconds: float) -> None:
        """Wait for a new number, or for the transactions of the barrier to end, at most this long."""
        if self._barrier is not None:
            time.sleep(min(BARRIER_LOOK_S, seconds))
            return
        deadline = time.monotonic() + seconds
        while self._last() <= self._decided and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left))

    def to_renumber(self, by: int) -> str:
        """Return the statements that give all rows numbers above ``by``, and new rows higher ones."""
        return f"SELECT setval('outbox_seq', {2 * by}); UPDATE outbox SET seq = seq + {by} WHERE seq <= {by}"

    def _last(self) -> int:
        return self._number("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox_seq")

    def _rows(self, seq: int, most: int) -> list[OutboxRow]:
        if seq >= self._decided:
            return []
        rows = self._connection().execute(
            "SELECT seq, id::text, aggregatetype, aggregateid, type, payload, headers, "
            "(extract(epoch FROM created_at) * 1000)::bigint "
            "FROM outbox WHERE seq > %s AND seq <= %s ORDER BY seq LIMIT %s",
            (seq, self._decided, most),
        )
        return [row_of(*row) for row in rows]

    def _number(self, query: str) -> int:
        row = self._connection().execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def _say_whose(self) -> None:
        if time.monotonic() < self._say_at:
            return
        self._say_at = time.monotonic() + BARRIER_LOG_S
        found = self._connection().execute(
            "(SELECT format('process %s (%s) since %s', pid, application_name, xact_start) FROM pg_stat_activity "
            "WHERE backend_xid IS NOT NULL ORDER BY age(backend_xid) DESC LIMIT 1) "
            "UNION ALL SELECT 'the prepared transaction ' || gid FROM pg_prepared_xacts"
        )
        log.warning("the outbox waits for an open transaction: %s", ", ".join(str(row[0]) for row in found))

    def _connection(self) -> psycopg.Connection:
        if self._open is None:
            self._open = _driver().connect(self._conninfo, autocommit=True)
        return self._open

    def _forget_a_lost_connection(self) -> bool:
        """Whether the connection is lost. What was known of the database is forgotten with it: another may be there
        when it comes back."""
        if self._open is not None and not self._open.closed:
            return False
        self.close()
        return True
