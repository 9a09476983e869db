"""Two clusters of real nodes, the command, and a process that runs a link."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog import TopicPartition
from tidelog.cli.root import run
from tidelog.client.admin.types import OffsetSpec
from tidelog.testing import Cluster

Command = Callable[..., tuple[int, str, str]]
WAIT_S = 90.0


@pytest.fixture
def tidelog(capfd: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(each) for each in arguments])
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def source() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc", config={"group.initial.rebalance.delay.ms": "0"}) as cluster:
        yield cluster


@pytest.fixture
def target() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc", config={"group.initial.rebalance.delay.ms": "0"}) as cluster:
        yield cluster


class Running:
    """A ``tidelog links run`` in a process of its own."""

    def __init__(self, name: str, bootstrap: str, log: Path, *more: str) -> None:
        command = [
            sys.executable,
            "-P",
            "-m",
            "tidelog.cli.main",
            "links",
            "run",
            name,
            "--bootstrap",
            bootstrap,
            *more,
        ]
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ.copy())

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(name: str, cluster: Cluster, *more: str) -> Running:
        started.append(Running(name, cluster.bootstrap, tmp_path / "link.log", *more))
        return started[-1]

    yield start
    for one in started:
        one.kill()
    if started:
        print(started[-1].log.read_text())


def until(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def end_of(cluster: Cluster, topic: str, partition: int = 0, *, committed: bool = False) -> int:
    with cluster.admin() as admin:
        at = TopicPartition(topic, partition)
        return admin.list_offsets({at: OffsetSpec.latest()}, read_committed=committed)[at].offset


def records(cluster: Cluster, topic: str, isolation_level: str = "read_committed") -> dict[tuple[int, int], Any]:
    """Everything that a reader sees, by partition and offset."""
    found = {}
    settings: dict[str, Any] = {"isolation_level": isolation_level, "auto_offset_reset": "earliest"}
    with cluster.consumer(group_id=None, **settings) as consumer, cluster.admin() as admin:
        partitions = [TopicPartition(topic, each.partition) for each in admin.describe_topics([topic])[0].partitions]
        ends = admin.list_offsets(
            {at: OffsetSpec.latest() for at in partitions}, read_committed=isolation_level == "read_committed"
        )
        consumer.assign(partitions)
        while any(consumer.position(at) < ends[at].offset for at in partitions):
            for one in consumer.poll(0.2):
                found[one.partition, one.offset] = (one.key, one.value, one.timestamp, tuple(one.headers))
    return found


Start = Callable[..., Running]


def status(tidelog: Command, target: Cluster, name: str = "dr") -> dict[tuple[str, int], Any]:
    code, out, err = tidelog("links", "status", name, "--bootstrap", target.bootstrap, "--json")
    assert code == 0, err
    return {(row["topic"], row["partition"]): row for row in json.loads(out)["partitions"]}


def create(tidelog: Command, source: Cluster, target: Cluster, topics: str, *more: str) -> None:
    code, _, err = tidelog(
        "links",
        "create",
        "dr",
        "--source",
        source.bootstrap,
        "--bootstrap",
        target.bootstrap,
        "--topics",
        topics,
        *more,
    )
    assert code == 0, err


def until_level(tidelog: Command, source: Cluster, target: Cluster, *topics: str) -> None:
    """The link has kept positions that are the source's ends."""

    def level() -> bool:
        found = status(tidelog, target)
        ends = {(name, number): end_of(source, name, number) for name, number in found if name in topics}
        return bool(ends) and all(found[at]["offset"] == end for at, end in ends.items())

    until(level, "the target has everything")
