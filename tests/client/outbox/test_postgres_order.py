"""The order in which the outbox of PostgreSQL gives its rows to a relay: whatever commits when, none is passed over,
and those of one aggregate come in the order of its lock."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import psycopg
import pytest

from tidelog import PostgresOutbox
from tidelog.client.outbox.rows import OutboxRow

AGGREGATES = 4
WRITERS = 5


@pytest.fixture
def database(conninfo: str) -> str:
    with psycopg.connect(conninfo) as connection:
        PostgresOutbox.create(connection)
        connection.execute("CREATE TABLE aggregate (id int PRIMARY KEY, writes int NOT NULL)")
        connection.execute("INSERT INTO aggregate SELECT id, 0 FROM generate_series(1, %s) id", (AGGREGATES,))
    return conninfo


@pytest.fixture
def writer(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database) as connection:
        yield connection


class Relay:
    """Reads as a relay does."""

    def __init__(self, outbox: PostgresOutbox) -> None:
        self.outbox = outbox
        self.place = 0
        self.seen: list[OutboxRow] = []

    def look(self, most: int = 3) -> bool:
        """Whether there was something to wait for."""
        rows = self.outbox.after(self.place, most)
        if rows:
            self.seen += rows
            self.place = rows[-1].seq
        return rows is None or bool(rows)

    def finish(self) -> list[bytes]:
        deadline = time.monotonic() + 60
        while self.look():
            assert time.monotonic() < deadline
        return [row.payload or b"" for row in self.seen]


@pytest.fixture
def relay(database: str) -> Iterator[Relay]:
    made = Relay(PostgresOutbox(database))
    yield made
    made.outbox.close()


def put(connection: psycopg.Connection, text: str, aggregate: str = "1") -> None:
    PostgresOutbox.put(connection, "test", aggregate, "written", text.encode())


def test_a_row_that_commits_late_is_not_passed_over(relay: Relay, writer: psycopg.Connection, database: str) -> None:
    put(writer, "begun first, committed last")
    with psycopg.connect(database) as other:
        put(other, "committed first")
        other.commit()
        put(other, "rolled back")
        other.rollback()
        for _ in range(3):
            assert relay.look(), "it waits"
        assert relay.seen == []
        writer.commit()
        assert relay.finish() == [b"begun first, committed last", b"committed first"]
        put(other, "next")
        other.commit()
        assert relay.finish()[2:] == [b"next"]
    assert not relay.look()


def test_what_came_while_it_waited_for_nothing_is_there_too(
    relay: Relay, writer: psycopg.Connection, database: str
) -> None:
    """All rows up to the noted number are rolled back, but there are later ones."""
    put(writer, "rolled back")
    assert relay.look(), "it waits"
    with psycopg.connect(database) as other:
        put(other, "later")
    writer.rollback()
    assert relay.look()
    assert [row.payload for row in relay.seen] == [b"later"]


def test_a_prepared_transaction_is_waited_for(relay: Relay, writer: psycopg.Connection) -> None:
    put(writer, "prepared")
    writer.execute("PREPARE TRANSACTION 'later'")
    writer.commit()
    put(writer, "after")
    writer.commit()
    assert relay.look()
    assert relay.seen == []
    writer.autocommit = True
    writer.execute("COMMIT PREPARED 'later'")
    assert relay.finish() == [b"prepared", b"after"]


def test_the_number_is_noted_before_the_id_is_drawn(relay: Relay, writer: psycopg.Connection, database: str) -> None:
    """A transaction that begins between the two steps does not count as ended."""

    class Slow(PostgresOutbox):
        def _last(self) -> int:
            if not begun:
                begun.append(True)
                put(writer, "just begun")
                with psycopg.connect(database) as other:
                    put(other, "committed")
            return super()._last()

    begun: list[bool] = []
    relay.outbox.close()
    relay.outbox = Slow(database)
    assert relay.look()
    assert relay.seen == []
    writer.commit()
    assert relay.finish() == [b"just begun", b"committed"]


def test_a_writer_has_an_id_before_it_has_a_number(relay: Relay, writer: psycopg.Connection, database: str) -> None:
    """A writer that stops between number and row is waited for."""
    put(writer, "first")  # now the sequence has numbers in stock, and drawing one gives nobody an id
    writer.execute(
        "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$"
    )
    writer.execute("CREATE TRIGGER stop BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION stop()")
    writer.commit()
    with psycopg.connect(database, autocommit=True) as lock, psycopg.connect(database) as stopped:
        lock.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=put, args=(stopped, "slow"), daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + 60
            while lock.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() != (1,):
                assert time.monotonic() < deadline
            assert relay.look()
            assert relay.look(), "it waits"
            assert relay.seen == []
        finally:
            lock.execute("SELECT pg_advisory_unlock(7)")
            thread.join(60)
        stopped.commit()
        assert relay.finish() == [b"first", b"slow"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_schedules(relay: Relay, database: str, seed: int) -> None:
    """Random transactions of several writers, and looks of a relay between their steps."""
    rng = random.Random(seed)
    locked: dict[int, int] = {}
    """Who holds the lock of an aggregate."""
    written: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    """What each open transaction has written, by aggregate."""
    committed: dict[int, list[bytes]] = defaultdict(list)
    writers = [psycopg.connect(database) for _ in range(WRITERS)]
    try:
        for number in range(400):
            writer = rng.randrange(WRITERS)
            connection = writers[writer]
            match rng.choice(("write", "write", "commit", "rollback", "bystander", "look", "look")):
                case "write":
                    aggregate = rng.randint(1, AGGREGATES)
                    if locked.setdefault(aggregate, writer) == writer:
                        connection.execute("UPDATE aggregate SET writes = writes + 1 WHERE id = %s", (aggregate,))
                        put(connection, str(number), str(aggregate))
                        written[writer].append((aggregate, b"%d" % number))
                case "bystander":
                    connection.execute("SELECT pg_current_xact_id()")
                case "look":
                    relay.look()
                case end:
                    if end == "commit":
                        connection.commit()
                        for aggregate, value in written[writer]:
                            committed[aggregate].append(value)
                    else:
                        connection.rollback()
                    written[writer].clear()
                    locked = {aggregate: holder for aggregate, holder in locked.items() if holder != writer}
    finally:
        for connection in writers:
            connection.close()
    seen: dict[int, list[bytes]] = defaultdict(list)
    relay.finish()
    for row in relay.seen:
        seen[int(row.aggregateid)].append(row.payload or b"")
    assert seen == committed, "each committed row once, in the order of its aggregate's lock"
