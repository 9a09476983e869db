"""A link between clusters of real processes that end by kill -9, promoted while producers write at the source."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidelog
from tidelog import TopicPartition
from tidelog.cli.local.cluster import LocalCluster
from tidelog.client.admin.types import OffsetSpec

from .conftest import Command, Running, until

LATEST = OffsetSpec.latest()
PLACES = [TopicPartition("t", number) for number in range(2)]


@pytest.fixture
def command(tidelog: Command) -> Command:
    """The fixture of that name, beside the module."""
    return tidelog


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str, int], LocalCluster]]:
    made: list[LocalCluster] = []

    def start(name: str, nodes: int) -> LocalCluster:
        made.append(LocalCluster.create(tmp_path / name, nodes=nodes))
        made[-1].start()
        made[-1].wait_ready()
        return made[-1]

    yield start
    for cluster in made:
        for number in cluster.nodes:
            cluster.kill(number)


def ends(cluster: LocalCluster) -> dict[int, int]:
    with tidelog.Admin(cluster.bootstrap) as admin:
        return {at.partition: one.offset for at, one in admin.list_offsets(dict.fromkeys(PLACES, LATEST)).items()}


def records(cluster: LocalCluster) -> list[tuple[tuple[int, int], bytes | None]]:
    """Everything, in the order in which it comes: what stands twice comes twice."""
    found = []
    until_ends = ends(cluster)
    with tidelog.Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(PLACES)
        while any(consumer.position(at) < until_ends[at.partition] for at in PLACES):
            found += [((one.partition, one.offset), one.value) for one in consumer.poll(0.2)]
    return found


@pytest.mark.timeout(400)
def test_a_killed_leader_and_a_killed_link_lose_and_double_nothing_below_the_promotion(
    make: Callable[[str, int], LocalCluster], command: Command, tmp_path: Path
) -> None:
    source, target = make("source", 3), make("target", 1)
    with tidelog.Admin(source.bootstrap) as admin:
        admin.create_topics([tidelog.NewTopic("t", 2, 3, {"min.insync.replicas": "2"})])
    at = ("--bootstrap", target.bootstrap)
    code, _, err = command("links", "create", "dr", "--source", source.bootstrap, *at, "--topics", "t")
    assert code == 0, err
    running = Running("dr", target.bootstrap, tmp_path / "link.log")
    acknowledged: dict[tuple[int, int], bytes] = {}
    over = threading.Event()

    def write() -> None:
        number = 0
        with tidelog.Producer(source.bootstrap, linger_ms=1, delivery_timeout_ms=120_000) as producer:
            while not over.is_set():
                sent = [producer.send("t", b"%d" % (number + n), partition=n % 2) for n in range(10)]
                for n, one in enumerate(sent):
                    found = one.result()
                    acknowledged[found.partition, found.offset] = b"%d" % (number + n)
                number += 10

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: min(ends(target).values()) > 0, "records come over")
        with tidelog.Admin(source.bootstrap) as admin:
            leader = admin.describe_topics(["t"])[0].partitions[0].leader
        source.kill(leader)
        running.kill()
        running = Running("dr", target.bootstrap, tmp_path / "link.log")
        killed_at = len(acknowledged)
        until(lambda: len(acknowledged) > killed_at + 100, "producers go on")
        reached = max(dict(acknowledged))
        until(lambda: ends(target)[reached[0]] > reached[1], "the link goes on from the new leader")
        code, out, err = command("links", "promote", "dr", *at, "--json")
        assert code == 0, err
        promoted = {row["partition"]: row["end"] for row in json.loads(out)["partitions"]}
        written = len(acknowledged)
        until(lambda: len(acknowledged) > written + 50, "the source goes on")
    finally:
        over.set()
        writer.join()
        running.kill()
    found = records(target)
    assert len(found) == len({value for _, value in found}), "no record stands twice"
    assert dict(found) == {place: value for place, value in acknowledged.items() if place[1] < promoted[place[0]]}
    assert ends(target) == promoted, "nothing comes after the promotion"
