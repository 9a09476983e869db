"""An order service: a shop writes orders, billing writes one bill for each, and any process may die at any time.

    tidelog cluster start
    python examples/orders.py create
    python examples/orders.py shop           # in other terminals: relay, bill a, bill b
    tidelog dlq list dlq.billing             # orders of customers that billing does not know
    python examples/orders.py customers      # now it knows them
    tidelog dlq redrive dlq.billing
    python examples/orders.py check

An order and its message are one transaction of the shop's database (outbox). The relay moves messages into the topic
`outbox.event.order`. Billing tries again later when the payment service fails (through a delay topic, so that nothing
waits behind the order), and puts aside what no retry fixes (dead letters). A bill and the note that its message was
handled are one transaction of billing's database (inbox). `check` compares both databases, and looks for messages,
retries and dead letters that are there twice.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tidelog import (
    Admin,
    Consumer,
    ConsumerRecord,
    NewTopic,
    OutboxRelay,
    RetryPolicy,
    SqliteInbox,
    SqliteOutbox,
    TopicPartition,
    Workers,
)

ORDERS = 5_000
CUSTOMERS = 40
UNKNOWN = range(3)
"""The customers that billing does not know at first."""
TOPIC = "outbox.event.order"
DEAD_LETTERS = "dlq.billing"
LATER, RETRIES = "later", "retry.billing"
"""The delay topic, and where what failed comes back."""
FAILURES = 0.05
"""How often the payment service fails."""


JOURNAL = "WAL" if sqlite3.sqlite_version_info >= (3, 51, 3) else "TRUNCATE"
"""Earlier releases can lose a committed transaction in WAL mode (https://sqlite.org/wal.html#walresetbug)."""


class UnknownCustomer(Exception):
    """No retry fixes that."""


class PaymentServiceAway(Exception):
    """The next attempt may succeed."""


def connect(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database, timeout=30.0, isolation_level="IMMEDIATE")
    connection.execute(f"PRAGMA journal_mode = {JOURNAL}")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def create(bootstrap: str, directory: Path) -> None:
    with closing(connect(directory / "shop.db")) as shop:
        SqliteOutbox.create(shop)
        shop.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, customer INTEGER, cents INTEGER)")
    with closing(connect(directory / "billing.db")) as billing:
        SqliteInbox.create(billing)
        billing.execute("CREATE TABLE bills (ordered INTEGER, customer INTEGER, cents INTEGER)")
        billing.execute("CREATE TABLE customers (number INTEGER PRIMARY KEY)")
        known = [(number,) for number in range(CUSTOMERS) if number not in UNKNOWN]
        with billing:
            billing.executemany("INSERT INTO customers VALUES (?)", known)
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("outbox.shop", 1), NewTopic(TOPIC, 3)])
        for name in (RETRIES, DEAD_LETTERS):
            admin.create_topics([NewTopic(name, 1, configs={"delay.sources": LATER})])
        delays = {
            "delay.enable": "true",
            "delay.targets": RETRIES,
            "delay.dead.letter.topic": DEAD_LETTERS,
            "message.timestamp.type": "LogAppendTime",
        }
        admin.create_topics([NewTopic(LATER, 1, configs=delays)])


def shop(directory: Path, orders: int, rate: float) -> None:
    """Take orders up to this number, at most ``rate`` a second; after a crash, continue behind the last one."""
    with closing(connect(directory / "shop.db")) as connection:
        (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM orders").fetchone()
        for number in range(last + 1, orders + 1):
            rng = random.Random(number)
            order = {"order": number, "customer": rng.randrange(CUSTOMERS), "cents": rng.randrange(100, 10_000)}
            with connection:
                connection.execute("INSERT INTO orders VALUES (:order, :customer, :cents)", order)
                SqliteOutbox.put(connection, "order", str(number), "placed", json.dumps(order).encode())
                if rng.random() < 0.1:
                    connection.rollback()  # the customer has changed his mind: neither order nor message
            time.sleep(1 / rate)


def relay(bootstrap: str, directory: Path) -> None:
    moving = OutboxRelay(SqliteOutbox(directory / "shop.db"), bootstrap, name="shop")
    _stops(moving.stop)
    moving.run()


def bill(bootstrap: str, directory: Path, name: str) -> None:
    inbox = SqliteInbox("billing", header="id")

    def handle(record: ConsumerRecord) -> None:
        order = json.loads(record.value or b"")
        with closing(connect(directory / "billing.db")) as billing, billing:
            if not inbox.take(billing, record):
                return  # it was handled before a crash
            known = billing.execute("SELECT number FROM customers WHERE number = ?", (order["customer"],)).fetchone()
            if known is None:
                raise UnknownCustomer(f"customer {order['customer']}")
            if random.random() < FAILURES:
                raise PaymentServiceAway
            billing.execute("INSERT INTO bills VALUES (:order, :customer, :cents)", order)

    workers = Workers(
        handle,
        bootstrap,
        topics=TOPIC,
        group_id="billing",
        workers=4,
        retry=RetryPolicy(attempts=6, backoff_ms=100, fatal=(UnknownCustomer,), through=LATER, back=RETRIES),
        dead_letters=DEAD_LETTERS,
        consumer_settings={
            "isolation_level": "read_committed",
            "group_instance_id": name,
            "session_timeout_ms": 10_000,
        },
        producer_settings={"transaction_timeout_ms": 2_000},
    )
    _stops(workers.stop)
    print(f"bill {name} begins", flush=True)
    workers.run()


def customers(directory: Path) -> None:
    with closing(connect(directory / "billing.db")) as billing, billing:
        billing.executemany("INSERT OR IGNORE INTO customers VALUES (?)", [(number,) for number in UNKNOWN])


Row = tuple[int, int, int]


def differences(orders: list[Row], bills: list[Row]) -> dict[str, list[Row]]:
    """Return the orders without a bill, the orders with several, and the bills that are not as ordered."""
    ordered, billed = {row[0]: row for row in orders}, Counter(row[0] for row in bills)
    return {
        "missing": [row for row in orders if not billed[row[0]]],
        "twice": [row for row in orders if billed[row[0]] > 1],
        "wrong": [row for row in bills if ordered.get(row[0]) != row],
    }


def times(bootstrap: str, topic: str) -> Counter[tuple[bytes | None, ...]]:
    """Return how often each message id is in a topic: as a retry after each attempt, and after each redrive."""
    found = Counter[tuple[bytes | None, ...]]()
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        places = [TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic)]
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        while any(consumer.position(at) < end for at, end in ends.items()):
            for record in consumer.poll(1.0):
                headers = dict(record.headers)
                found[headers["id"], headers.get("tidelog-redrives"), headers.get("tidelog-retry-attempt")] += 1
    return found


def check(bootstrap: str, directory: Path) -> bool:
    with closing(connect(directory / "shop.db")) as connection:
        orders: list[Row] = connection.execute("SELECT * FROM orders ORDER BY number").fetchall()
    with closing(connect(directory / "billing.db")) as connection:
        bills: list[Row] = connection.execute("SELECT * FROM bills ORDER BY ordered").fetchall()
    wrong = differences(orders, bills)
    for kind, rows in wrong.items():
        for row in rows[:3]:
            print(f"  {kind}: order {row[0]} of customer {row[1]}, {row[2]} cents")
    print(f"{len(orders):,} orders, " + ", ".join(f"{len(rows):,} {kind}" for kind, rows in wrong.items()))
    passed = bool(orders) and not any(wrong.values())
    for name, topic in (("messages", TOPIC), ("retries", RETRIES), ("dead letters", DEAD_LETTERS)):
        found = times(bootstrap, topic)
        twice = sum(count > 1 for count in found.values())
        print(f"{len(found):,} {name}, {twice:,} twice")
        passed = passed and not twice
    print("PASSED" if passed else "FAILED")
    return passed


def _stops(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def main() -> int:
    parser = argparse.ArgumentParser(description="Orders and bills: outbox, retries, dead letters, inbox.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="a node's address, or several")
    parser.add_argument("--directory", type=Path, default=Path(), help="where both databases are")
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("create", "relay", "customers", "check"):
        steps.add_parser(name)
    taking = steps.add_parser("shop")
    taking.add_argument("--orders", type=int, default=ORDERS, help="so many orders")
    taking.add_argument("--rate", type=float, default=500.0, help="at most so many a second")
    steps.add_parser("bill").add_argument("name", help="the same after each restart")
    options = parser.parse_args()
    if options.step in ("relay", "bill"):
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")  # each failure of a handler, too
    match options.step:
        case "create":
            create(options.bootstrap, options.directory)
        case "shop":
            shop(options.directory, options.orders, options.rate)
        case "relay":
            relay(options.bootstrap, options.directory)
        case "bill":
            bill(options.bootstrap, options.directory, options.name)
        case "customers":
            customers(options.directory)
        case "check":
            return 0 if check(options.bootstrap, options.directory) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
