"""A relay between PostgreSQL and a cluster: each committed row once, whatever is killed, and clear refusals."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from tests.postgres import Postgres
from tidelog import OutboxRelay, PostgresOutbox
from tidelog.client.errors import IllegalStateError, ProducerFencedError
from tidelog.testing import Cluster

from . import relay_program
from .test_relay import Running, sent, statements


@pytest.fixture
def database(conninfo: str) -> str:
    with psycopg.connect(conninfo) as connection:
        PostgresOutbox.create(connection)
        PostgresOutbox.create(connection)
    return conninfo


def relay(cluster: Cluster, database: str, name: str, **options: object) -> OutboxRelay:
    return OutboxRelay(PostgresOutbox(database), cluster.bootstrap, name=name, **options)  # type: ignore[arg-type]


def write(database: str, name: str, numbers: range) -> None:
    with psycopg.connect(database) as connection:
        put(connection, name, numbers)


def put(connection: psycopg.Connection, name: str, numbers: range) -> None:
    for number in numbers:
        PostgresOutbox.put(connection, name, str(number % 5), "counted", b"%d" % number, {"n": str(number)})


class Writer(threading.Thread):
    """Commits and rolls back transactions of a few rows, and holds some open for a while, until it is told to stop. A
    commit without an answer is looked up."""

    def __init__(self, database: str, name: str, number: int) -> None:
        super().__init__(daemon=True)
        self._database, self._name, self._number = database, name, number
        self.done = threading.Event()
        self.committed: list[int] = []

    def run(self) -> None:
        rng, number = random.Random(self._number), self._number * 10**6
        while not self.done.is_set():
            numbers = range(number, number := number + rng.randint(1, 4))
            try:
                with psycopg.connect(self._database) as connection:
                    connection.execute("INSERT INTO written SELECT unnest(%s::int[])", (list(numbers),))
                    put(connection, self._name, numbers)
                    self.done.wait(rng.choice((0, 0, 0.02, 0.1)))
                    if rng.random() < 0.2:
                        connection.rollback()
            except psycopg.OperationalError:
                self.done.wait(0.05)


def test_kill_9_of_relay_and_server(cluster: Cluster, postgres: Postgres, database: str, name: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE written (number int PRIMARY KEY)")
    writers = [Writer(database, name, number) for number in range(1, 4)]
    for writer in writers:
        writer.start()
    rng = random.Random(5)
    command = [sys.executable, str(Path(relay_program.__file__)), database, cluster.bootstrap, name]
    for kills_server in (True, False, True):
        with subprocess.Popen(command) as program:
            try:
                before, deadline = len(sent(cluster, name)), time.monotonic() + 60
                while len(sent(cluster, name)) == before:
                    assert time.monotonic() < deadline
                if kills_server:
                    postgres.kill()
                    postgres.start()
                    time.sleep(rng.uniform(0, 0.5))
            finally:
                program.kill()
    for writer in writers:
        writer.done.set()
        writer.join(60)
    relay(cluster, database, name).run(until_empty=True)
    with psycopg.connect(database) as connection:
        written = [int(row[0]) for row in connection.execute("SELECT number FROM written")]
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,), "deleted once sent"
    assert len(written) > 20
    found = sent(cluster, name)
    assert Counter(found) == Counter(written), "each once"
    for aggregate in range(5):
        for writer_number in range(1, 4):
            of_one = [value for value in found if value % 5 == aggregate and value // 10**6 == writer_number]
            assert of_one == sorted(of_one), "in the order of its commits"


def test_a_running_relay_connects_again_and_a_second_one_fences_it(
    cluster: Cluster, postgres: Postgres, database: str, name: str
) -> None:
    write(database, name, range(3))
    first, second = Running(relay(cluster, database, name)), relay(cluster, database, name)
    first.wait_for(3)
    postgres.kill()
    postgres.start()
    write(database, name, range(3, 6))
    first.wait_for(6)
    assert second.run(until_empty=True).sent == 0
    write(database, name, range(6, 9))
    assert isinstance(first.ended(), ProducerFencedError), "it has been replaced"
    relay(cluster, database, name).run(until_empty=True)
    assert Counter(sent(cluster, name)) == Counter(range(9))


def test_without_its_driver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tidelog\[postgres\]'"):
        PostgresOutbox("dbname=shop")


def test_what_went_wrong_is_said_and_nothing_is_lost(cluster: Cluster, database: str, name: str) -> None:
    with psycopg.connect(database) as connection:
        write(database, name, range(2))
        connection.execute("CREATE TABLE backup AS TABLE outbox")
        write(database, name, range(2, 5))
        connection.commit()
        assert relay(cluster, database, name).run(until_empty=True).sent == 5

        connection.execute("INSERT INTO outbox SELECT * FROM backup")
        connection.execute("UPDATE outbox SET seq = seq - 5")  # the trigger has given the rows new numbers
        connection.execute("SELECT setval('outbox_seq', 2)")
        connection.commit()
        for numbers in (range(5, 6), range(6, 11)):
            write(database, name, numbers)
            with pytest.raises(IllegalStateError, match="restored from an older backup") as told:
                relay(cluster, database, name).run(until_empty=True)
        assert Counter(sent(cluster, name)) == Counter(range(5)), "nothing else is sent"
        connection.execute(statements(told.value).encode())
        connection.commit()
        relay(cluster, database, name).run(until_empty=True)
        assert Counter(sent(cluster, name)) == Counter([*range(11), *range(2)]), "what is there, again"

        connection.execute("UPDATE outbox_identity SET id = gen_random_uuid()")
        connection.commit()
        with pytest.raises(IllegalStateError, match="a relay for another database needs another name"):
            relay(cluster, database, name).run(until_empty=True)
        for change in ("ALTER SEQUENCE outbox_seq CACHE 5", "ALTER TABLE outbox DISABLE TRIGGER outbox_number"):
            connection.execute(change.encode())
            connection.commit()
            with pytest.raises(IllegalStateError, match="undo what was altered"):
                relay(cluster, database, name).run(until_empty=True)
            connection.execute("ALTER SEQUENCE outbox_seq CACHE 1")
        connection.execute("DROP TABLE outbox_identity")
        connection.commit()
        with pytest.raises(IllegalStateError, match=r"expected the tables of PostgresOutbox\.create\(\)"):
            relay(cluster, database, name).run(until_empty=True)
    with pytest.raises(psycopg.OperationalError), contextlib.closing(PostgresOutbox("host=/nowhere")):
        pass


def test_a_lost_place_is_not_guessed(cluster: Cluster, database: str, name: str) -> None:
    with psycopg.connect(database) as connection:
        put(connection, name, range(100, 103))
        connection.rollback()
    assert relay(cluster, database, name).run(until_empty=True).sent == 0, "numbers that nobody got are no loss"
    write(database, name, range(2))
    outbox = PostgresOutbox(database)
    outbox.delete(4)
    outbox.close()
    with pytest.raises(IllegalStateError, match="rows before 5 were sent, deleted"):
        relay(cluster, database, name).run(until_empty=True)
    assert relay(cluster, database, name, start_after=4).run(until_empty=True).sent == 1
    assert sent(cluster, name) == [1]
