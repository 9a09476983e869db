"""A relay on a cluster: each committed row of SQLite once, none of a rolled-back transaction, through kills."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.client.workers.test_workers import letters
from tidelog import OutboxRelay, Producer, SqliteOutbox
from tidelog.client.errors import IllegalStateError, ProducerFencedError, TidelogError
from tidelog.testing import Cluster

from . import relay_program


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "shop.db"
    with sqlite3.connect(found) as made:
        made.execute("PRAGMA journal_mode=WAL")
        SqliteOutbox.create(made)
    return found


def write(path: Path, name: str, numbers: range, *, fail: bool = False) -> None:
    """One transaction with these rows, of aggregates 0 to 4."""
    connection = sqlite3.connect(path, timeout=30)
    try:
        with connection:
            for number in numbers:
                SqliteOutbox.put(connection, name, str(number % 5), "counted", b"%d" % number, {"n": str(number)})
            if fail:
                raise LookupError
    finally:
        connection.close()


def relay(cluster: Cluster, path: Path, name: str, **options: object) -> OutboxRelay:
    return OutboxRelay(SqliteOutbox(path), cluster.bootstrap, name=name, **options)  # type: ignore[arg-type]


class Running:
    """A relay in a thread."""

    def __init__(self, of: OutboxRelay) -> None:
        self.relay = of
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.relay.run()
        except TidelogError as error:
            self._error = error

    def wait_for(self, count: int) -> None:
        """Until it has sent so many rows."""
        deadline = time.monotonic() + 60
        while self.relay.counts.sent < count:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def ended(self) -> BaseException | None:
        """What ended it; nothing if it was told to stop."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self._error


def sent(cluster: Cluster, name: str) -> list[int]:
    return [int(record.value or b"") for record in letters(cluster, f"outbox.event.{name}")]


def statements(error: IllegalStateError) -> str:
    """What the message advises to run."""
    return str(error).partition("while no program writes: ")[2].partition(" . ")[0]


def test_committed_rows_and_no_others(cluster: Cluster, path: Path, name: str) -> None:
    write(path, name, range(7))
    with pytest.raises(LookupError):
        write(path, name, range(100, 105), fail=True)
    write(path, name, range(7, 10))
    assert relay(cluster, path, name).run(until_empty=True).sent == 10
    assert relay(cluster, path, name).run(until_empty=True).sent == 0
    found = letters(cluster, f"outbox.event.{name}")
    assert Counter(int(record.value or b"") for record in found) == Counter(range(10))
    one = next(record for record in found if record.value == b"7")
    headers = dict(one.headers)
    assert (one.key, headers["type"], headers["n"]) == (b"2", b"counted", b"7")
    assert len(headers["id"] or b"") == 36
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,), "deleted once sent"


def test_a_running_relay_is_woken_and_stopped(cluster: Cluster, path: Path, name: str) -> None:
    running = Running(relay(cluster, path, name, keep=True))
    write(path, name, range(3))
    running.wait_for(3)
    running.relay.stop()
    assert running.ended() is None
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (3,), "kept"


def test_a_second_relay_fences_the_first(cluster: Cluster, path: Path, name: str) -> None:
    write(path, name, range(3))
    first = Running(relay(cluster, path, name))
    first.wait_for(3)
    second = relay(cluster, path, name, keep=True)
    assert second.run(until_empty=True).sent == 0
    write(path, name, range(3, 6))
    assert isinstance(first.ended(), ProducerFencedError), "it has been replaced"
    second.run(until_empty=True)
    assert Counter(sent(cluster, name)) == Counter(range(6))


def test_a_relay_knows_what_its_predecessor_sent_up_to_the_fence(
    cluster: Cluster, path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, name, range(3))
    fence = Producer.init_transactions

    def late(producer: Producer) -> None:
        monkeypatch.setattr(Producer, "init_transactions", fence)
        assert relay(cluster, path, name, keep=True).run(until_empty=True).sent == 3
        fence(producer)

    monkeypatch.setattr(Producer, "init_transactions", late)
    assert relay(cluster, path, name, keep=True).run(until_empty=True).sent == 0
    assert Counter(sent(cluster, name)) == Counter(range(3))


def test_kill_9_again_and_again(cluster: Cluster, path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, number = random.Random(3), 0
    command = [sys.executable, str(Path(relay_program.__file__)), str(path), cluster.bootstrap, name]
    for _ in range(3):
        with subprocess.Popen(command) as program:
            try:
                before, deadline, enough = len(sent(cluster, name)), time.monotonic() + 60, rng.randint(1, 60)
                while len(sent(cluster, name)) < before + enough:
                    assert time.monotonic() < deadline, "the program sends nothing"
                    if rng.random() < 0.2:
                        with pytest.raises(LookupError):
                            write(path, name, range(10**6, 10**6 + 3), fail=True)
                    write(path, name, range(number, number + 4))
                    number += 4
                    time.sleep(0.01)
            finally:
                program.kill()
    relay(cluster, path, name).run(until_empty=True)
    found = sent(cluster, name)
    assert Counter(found) == Counter(range(number)), "each once"
    for aggregate in range(5):
        of_one = [value for value in found if value % 5 == aggregate]
        assert of_one == sorted(of_one), "in the order of its commits"


def test_what_went_wrong_is_said_and_nothing_is_sent(cluster: Cluster, path: Path, name: str, tmp_path: Path) -> None:
    with pytest.raises(IllegalStateError, match=r"tidelog topics create outbox\.nowhere --partitions 1"):
        relay(cluster, path, "nowhere").run(until_empty=True)
    with pytest.raises(IllegalStateError, match="found no file"):
        SqliteOutbox(tmp_path / "not-there.db")
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE t (a)").connection.close()
    with pytest.raises(IllegalStateError, match=r"expected the tables of SqliteOutbox\.create\(\)"):
        relay(cluster, tmp_path / "empty.db", name).run(until_empty=True)

    backup = tmp_path / "backup.db"
    write(path, name, range(2))
    with sqlite3.connect(path) as source, sqlite3.connect(backup) as copy:
        source.backup(copy)
    write(path, name, range(2, 5))
    relay(cluster, path, name).run(until_empty=True)
    with pytest.raises(IllegalStateError, match="restored from an older backup"):
        relay(cluster, backup, name).run(until_empty=True)
    write(backup, name, range(10, 16))
    with pytest.raises(IllegalStateError, match="restored from an older backup") as told:
        relay(cluster, backup, name).run(until_empty=True)

    other = tmp_path / "other.db"
    with sqlite3.connect(other) as made:
        SqliteOutbox.create(made)
    write(other, name, range(50, 60))
    with pytest.raises(IllegalStateError, match="a relay for another database needs another name"):
        relay(cluster, other, name).run(until_empty=True)
    assert Counter(sent(cluster, name)) == Counter(range(5))

    with sqlite3.connect(backup) as connection:
        connection.executescript(statements(told.value))
    write(backup, name, range(16, 18))
    relay(cluster, backup, name).run(until_empty=True)
    assert Counter(sent(cluster, name)) == Counter([*range(5), *range(2), *range(10, 18)]), "what is there, again"

    with sqlite3.connect(backup) as connection:
        SqliteOutbox.put(connection, name, "1", "counted", b"5")
        connection.execute("UPDATE outbox SET headers = '[1]'")
    with pytest.raises(IllegalStateError, match="expected headers to be a JSON object of strings"):
        relay(cluster, backup, name).run(until_empty=True)


def test_a_lost_place_is_not_guessed(cluster: Cluster, path: Path, name: str) -> None:
    write(path, name, range(5))
    SqliteOutbox(path).delete(3)
    with pytest.raises(IllegalStateError, match="rows before 4 were sent, deleted"):
        relay(cluster, path, name).run(until_empty=True)
    assert relay(cluster, path, name, start_after=4).run(until_empty=True).sent == 1
    assert sent(cluster, name) == [4]


def test_the_place_outside_the_transaction_would_double(
    cluster: Cluster, path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge of kills must be able to fail: a relay that dies between its records and its place sends twice."""
    write(path, name, range(5))
    monkeypatch.setattr(Producer, "send_offsets_to_transaction", lambda *_: None)
    relay(cluster, path, name, keep=True).run(until_empty=True)
    monkeypatch.undo()
    relay(cluster, path, name).run(until_empty=True)
    assert Counter(sent(cluster, name)) == Counter([*range(5), *range(5)])
