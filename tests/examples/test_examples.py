"""The examples: they keep their promise under kill -9, and their checks can fail."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tidelog import Producer
from tidelog.testing import Cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


delays = load("flight_delays")
statistics = load("carrier_statistics")
orders = load("orders")


def run(*command: str, timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


def drill(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-P", "-m", "tidelog.demo.examples.command", *arguments)


def test_each_flight_is_there_once_though_workers_and_nodes_are_killed() -> None:
    done = drill("flights", "--rows", "6000", "--seconds", "5", "--node-kills", "1", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6,000 flights, 0 missing, 0 twice, 0 wrong" in done.stdout
    assert "1 times a node" in done.stdout


def test_each_flight_is_counted_once_though_those_who_count_are_killed() -> None:
    done = drill("sqlite", "--rows", "30000", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED: 30,000 flights, each counted once" in done.stdout
    assert done.stdout.count("kill -9 with") == 3


def test_each_order_has_one_bill_though_all_programs_are_killed() -> None:
    done = drill("orders", "--orders", "200", "--kills", "2", "--node-kills", "0", "--seed", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " orders, 0 missing, 0 twice, 0 wrong" in done.stdout
    assert "letters moved" in done.stdout
    assert done.stdout.count("kill -9 with") >= 3


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_can_be_copied(program: Path) -> None:
    """It stands alone: the SDK and Python, no word of how this tree tests it; and it tells how it is used."""
    text = program.read_text()
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"tidelog"}
    assert "from tidelog." not in text, "only what `from tidelog import …` gives"
    done = run(sys.executable, "-P", str(program), "--help")
    assert done.returncode == 0
    assert "--bootstrap" in done.stdout


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster(nodes=1, transport="grpc") as cluster:
        cluster.create_topic("flight-delays", 4)
        yield cluster.bootstrap


def test_what_is_missing_twice_or_wrong_is_told_by_row(bootstrap: str) -> None:
    """The check as a process, on an output that lacks row 3, has row 5 twice and row 7 changed."""
    rows = {flight["row"]: delays.delay(flight) for flight in delays.flights(20)}
    program = str(EXAMPLES / "flight_delays.py")
    with Producer(bootstrap, transactional_id="test") as producer:
        with producer.transaction():
            for row, (key, value) in rows.items():
                if row != 3:
                    producer.send("flight-delays", value.replace(b"on time", b"late") if row == 7 else value, key)
            producer.send("flight-delays", rows[5][1], rows[5][0])
        producer.begin_transaction()
        producer.send_and_wait("flight-delays", rows[3][1], rows[3][0])
        producer.abort_transaction()  # which repairs nothing
    done = run(sys.executable, "-P", program, "--bootstrap", bootstrap, "check", "--rows", "20")
    assert done.returncode == 1
    assert "20 flights, 1 missing, 1 twice, 1 wrong" in done.stdout
    for kind, row in (("missing", 3), ("twice", 5), ("wrong", 7)):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"  {kind}"))
        assert f'"row": {row},' in line
    assert done.stdout.splitlines()[-1].startswith("FAILED")


def delayed(change: str) -> list[str]:
    expected = {flight["row"]: delays.delay(flight) for flight in delays.flights(5)}
    found: list[tuple[bytes | None, bytes | None]] = list(expected.values())
    key, value = expected[2]
    if change == "foreign":
        found.append((b"UA", json.dumps({"row": 5}).encode()))
    elif change == "no row":
        found.append((b"UA", b"{}"))
    elif change == "no value":
        found[2] = (key, None)
    elif change == "other key":
        found[2] = (b"XX", value)
    elif change == "not JSON":
        found[2] = (key, b"\xff")
    return [kind for kind, _ in delays.differences(expected, found)]


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ("nothing", []),
        ("foreign", ["wrong"]),
        ("no row", ["wrong"]),
        ("no value", ["wrong", "missing"]),
        ("other key", ["wrong"]),
        ("not JSON", ["wrong", "missing"]),
    ],
)
def test_whatever_is_not_what_it_should_be_is_wrong(change: str, kinds: list[str]) -> None:
    assert delayed(change) == kinds


def test_statistics_that_are_off_by_one_are_told(tmp_path: Path) -> None:
    database = tmp_path / "statistics.db"
    expected = statistics.computed(1_000)
    with statistics.connect(str(database)) as connection:
        for carrier, row in expected.items():
            connection.execute(statistics.ADD, (carrier, *row))
    command = (sys.executable, "-P", str(EXAMPLES / "carrier_statistics.py"), "--database", str(database))
    assert run(*command, "check", "--rows", "1000").returncode == 0
    connection.execute("UPDATE statistics SET late = late + 1 WHERE carrier = 'UA'")
    connection.close()
    done = run(*command, "check", "--rows", "1000")
    assert done.returncode == 1
    assert "  UA: expected" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAILED"


def test_who_lost_a_partition_meanwhile_adds_nothing(tmp_path: Path) -> None:
    """Two counters that both believe to own a partition: the second to store is told, and its share is not added."""
    database = str(tmp_path / "statistics.db")

    class Seeks:
        def seek(self, at: object, offset: int) -> None:
            self.offset = offset

    flight = {"carrier": "UA", "arr_delay": "20", "dep_delay": "5"}

    class Record:
        topic, partition, value = "flights", 0, json.dumps(flight).encode()

        def __init__(self, offset: int) -> None:
            self.offset = offset

    at = statistics.TopicPartition("flights", 0)
    first, second = (statistics.Counting(Seeks(), statistics.connect(database)) for _ in range(2))
    first.on_partitions_assigned([at])
    second.on_partitions_assigned([at])
    first.store([Record(0), Record(1)])
    with pytest.raises(statistics.LostPartition):
        second.store([Record(0)])
    second.on_partitions_assigned([at])
    assert second.consumer.offset == 2
    second.store([Record(2)])
    for counting in (first, second):
        counting.connection.close()
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT * FROM statistics").fetchall() == [("UA", 3, 0, 3, 60)]
    connection.close()


def test_bills_that_are_missing_twice_or_wrong_and_letters_that_are_there_twice_are_told(
    tmp_path: Path, bootstrap: str
) -> None:
    program = (sys.executable, "-P", str(EXAMPLES / "orders.py"), "--bootstrap", bootstrap)
    command = (*program, "--directory", str(tmp_path))
    assert run(*command, "create").returncode == 0
    shop, billing = orders.connect(tmp_path / "shop.db"), orders.connect(tmp_path / "billing.db")
    rows = [(number, 7, 100) for number in range(5)]
    with shop:
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    with billing:
        billing.executemany("INSERT INTO bills VALUES (?, ?, ?)", rows)
    assert run(*command, "check").returncode == 0
    with billing:
        billing.execute("DELETE FROM bills WHERE ordered = 1")
        billing.execute("INSERT INTO bills VALUES (2, 7, 100)")
        billing.execute("UPDATE bills SET cents = 1 WHERE ordered = 3")
    with Producer(bootstrap) as producer:
        for _ in range(2):
            producer.send("dlq.billing", b"{}", headers=[("id", b"a")])
    done = run(*command, "check")
    shop.close()
    billing.close()
    assert done.returncode == 1
    assert "5 orders, 1 missing, 1 twice, 1 wrong" in done.stdout
    assert "1 dead letters, 1 twice" in done.stdout
    for kind, order in (("missing", 1), ("twice", 2), ("wrong", 3)):
        assert f"  {kind}: order {order} of customer 7" in done.stdout
