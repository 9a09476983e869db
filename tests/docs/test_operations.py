"""The pages about nodes that come and go: their steps run on a cluster of processes, and do what they promise."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tidelog.cli.local.cluster import LocalCluster

from .code_blocks import ROOT, CodeBlock, code_blocks
from .test_readme import Reader

PAGE: Final = ROOT / "docs" / "operations.md"
RECORDS: Final = 300
"""Sent before each section."""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    if LocalCluster.exists(made.data):
        cluster = LocalCluster.open(made.data)
        for node_id in cluster.nodes:
            cluster.kill(node_id)


def steps(heading: str, place: Path) -> CodeBlock:
    """The steps of a section."""
    (section,) = (text for text in PAGE.read_text().split("\n## ") if text.startswith(f"{heading}\n"))
    page = place / f"{heading}.md"
    page.write_text(section)
    (block,) = (block for block in code_blocks(page) if block.info == ("sh", "steps"))
    return block


class Operator:
    """Follows sections, and looks at the cluster."""

    def __init__(self, reader: Reader, place: Path) -> None:
        self._reader = reader
        self._place = place
        self.sent = 0

    def run(self, command: str) -> str:
        return self._reader.run(CodeBlock(PAGE, 0, ("sh",), command), "bash", "-o", "pipefail", "-ec", command)

    def follow(self, heading: str, before: str = "") -> str:
        self.run(f"seq {RECORDS} | tidelog produce orders")
        self.sent += RECORDS
        return self.run(before + steps(heading, self._place).text)

    def brokers(self) -> dict[int, Any]:
        return {row["node"]: row for row in json.loads(self.run("tidelog brokers list --json"))}

    def until_whole(self) -> None:
        """Every partition has its three replicas in sync."""
        deadline = time.monotonic() + 60
        while not all(len(row["isr"]) == len(row["replicas"]) == 3 for row in self._partitions()):
            assert time.monotonic() < deadline

    def _partitions(self) -> list[Any]:
        found: list[object] = json.loads(self.run("tidelog topics describe --json"))
        return found


@pytest.mark.timeout(400)
def test_nodes_come_and_go_as_the_page_says(reader: Reader, tmp_path: Path) -> None:
    operator = Operator(reader, tmp_path)
    operator.run("tidelog cluster start --free-ports --nodes 3")
    operator.run("tidelog topics create orders --partitions 8 --replicas 3")

    operator.follow("Add a node")
    operator.until_whole()
    assert operator.brokers()[4]["replicas"] in (5, 6, 7), "of 24"

    said = operator.follow("Drain a broker")
    assert "broker 4 is empty" in said
    operator.until_whole()
    assert {node: row["replicas"] for node, row in operator.brokers().items()} == {1: 8, 2: 8, 3: 8}

    said = operator.follow("Move to other disks")
    assert "moved 8 replicas" in said
    old, new = json.loads(operator.run("tidelog log-dirs describe 2 --json"))
    assert ([one["topic"] for one in old["replicas"]], len(new["replicas"])) == ([], 8)
    operator.until_whole()

    operator.run("tidelog cluster kill 3")
    deadline = time.monotonic() + 60
    while operator.brokers()[3]["state"] != "fenced":
        assert time.monotonic() < deadline
    operator.follow("Replace a dead node")
    operator.until_whole()
    assert {node: row["replicas"] for node, row in operator.brokers().items()} == {1: 8, 2: 8, 5: 8}

    read = operator.run("tidelog consume orders --from-beginning --until-end")
    assert sorted(map(int, read.split())) == sorted([*range(1, RECORDS + 1)] * (operator.sent // RECORDS))


def test_a_look_inside_shows_what_the_page_says(reader: Reader, tmp_path: Path) -> None:
    operator = Operator(reader, tmp_path)
    operator.run("tidelog cluster start --free-ports --nodes 3")
    operator.run("tidelog topics create orders --partitions 2 --replicas 3")
    said = operator.follow("Look inside")
    assert '"committed_offset"' in said
    assert '"orders"' in said
    assert "no damage" in said
    assert said.count("no difference") == 2
    assert said.count("producer_send_success") == 100
    assert said.splitlines()[-1].endswith('"name": "shutdown_complete"}')


@pytest.mark.timeout(400)
def test_a_backup_is_restored_as_the_page_says(reader: Reader, tmp_path: Path) -> None:
    operator = Operator(reader, tmp_path)
    operator.run("tidelog cluster start --free-ports --nodes 3")
    operator.run("tidelog topics create orders --partitions 3 --replicas 3")
    try:
        said = operator.follow("Back up and restore")
        assert said.splitlines()[-1].startswith("orders")
        with_new = "TIDELOG_HOME=~/restored tidelog"
        read = operator.run(f"{with_new} consume orders --from-beginning --until-end")
        assert sorted(map(int, read.split())) == list(range(1, RECORDS + 1))
        assert json.loads(operator.run(f"{with_new} topics describe --json"))[0]["replicas"]
    finally:
        operator.run("TIDELOG_HOME=~/restored tidelog cluster stop || true")


@pytest.mark.timeout(400)
def test_a_link_is_made_and_promoted_as_the_pages_say(reader: Reader, tmp_path: Path) -> None:
    operator = Operator(reader, tmp_path)
    old = "export TIDELOG_HOME=~/old;"
    try:
        for node, heading in enumerate(("Link to another cluster", "Migrate from Kafka")):
            if node:
                operator.run("tidelog topics delete orders")
            else:
                operator.run("tidelog cluster start --free-ports --nodes 1")
                operator.run(f"{old} tidelog cluster start --free-ports --nodes 1")
                operator.run(f"{old} tidelog topics create orders --partitions 3")
            operator.run(f"seq {RECORDS} | ({old} tidelog produce orders)")
            operator.run(f"{old} tidelog consume orders --group readers --from-beginning --max 100 > /dev/null")
            source = LocalCluster.open(reader.home / "old").bootstrap.replace("127.0.0.1", "localhost")
            said = operator.run(f"export OLD={source}\n{steps(heading, tmp_path).text}")
            assert said.splitlines()[-1].endswith("is deleted")
            read = operator.run("tidelog consume orders --from-beginning --until-end")
            assert sorted(map(int, read.split())) == sorted([*range(1, RECORDS + 1)] * (node + 1))
            operator.run("echo 0 | tidelog produce orders")
            assert json.loads(operator.run("tidelog groups describe readers --json"))
    finally:
        operator.run(f"{old} tidelog cluster stop || true")
