"""A group with members of both protocols, librdkafka's and the SDK's, whose coordinator's process is killed under
load."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from tests.kafka.clients.test_consumer_protocol import CONFIG, Member
from tests.kafka.clients.test_group_conversion import Work
from tests.kafka.wire_client import WireClient
from tidelog import Admin, Consumer, NewTopic
from tidelog.cli.local.cluster import LocalCluster

SETTINGS = {**CONFIG, "group.consumer.session.timeout.ms": "45000", "min.insync.replicas": "2"}
CLASSIC = {"session_timeout_ms": 45_000, "heartbeat_interval_ms": 200}
FIND_COORDINATOR = 10


class Processes:
    """Three nodes, each a process of its own."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @property
    def kafka_bootstrap(self) -> str:
        return self._cluster.bootstrap

    def create_topic(self, name: str, partitions: int) -> None:
        with Admin(self._cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions, 3)])


class Own(Member):
    """A member that uses the SDK."""

    def __init__(self, bootstrap: str, group: str, topic: str, **options: Any) -> None:
        self.lost = False
        self.read, self.failures = [], []
        self._own = Consumer(bootstrap, group_id=group, auto_offset_reset="earliest", **options)
        self._own.subscribe([topic])

    def poll(self) -> None:
        self.read += [(record.partition, record.offset) for record in self._own.poll(0.05)]

    @property
    def has(self) -> set[tuple[str, int]]:
        return {(at.topic, at.partition) for at in self._own.assignment()}

    def close(self) -> None:
        self._own.close()


def coordinator(cluster: LocalCluster, group: str) -> int | None:
    alive = next(cluster.node(number).ports.bootstrap for number in cluster.running())
    with WireClient(alive) as wire:
        answer = wire.ask(FIND_COORDINATOR, 3, key=group, key_type=0)
        return None if answer.error_code else int(answer.node_id)


def test_a_mixed_group_goes_on_when_its_coordinator_is_killed(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "cluster", nodes=3, settings=SETTINGS)
    try:
        cluster.start()
        cluster.wait_ready(timeout_s=60)
        topic, group, bootstrap = "load", "mixed", cluster.bootstrap
        with closing(Work(Processes(cluster), topic, group)) as work:
            foreign = {name.replace("_", "."): value for name, value in CLASSIC.items()}
            work.come({"group.protocol": "classic", **foreign})
            work.come({})
            work.members += [Own(bootstrap, group, topic, **CLASSIC)]
            work.members += [Own(bootstrap, group, topic, group_protocol="consumer")]
            work.settle()
            old = coordinator(cluster, group)
            assert old is not None
            shares = [member.partitions for member in work.members]
            assert cluster.kill(old)
            work.until(lambda: coordinator(cluster, group) not in (None, old))
            before = work.read
            work.until(lambda: all(not before.issuperset(member.read) for member in work.members))
            assert [member.partitions for member in work.members] == shares, "the successor found the group as it was"
            work.come({})
            work.settle()
            with Admin(bootstrap) as admin:
                described = admin.describe_consumer_groups([group])[group]
            assert sorted(bool(member.upgraded) for member in described.members) == [False, False, True, True, True]
            work.drain()
            assert not any(member.lost or member.failures for member in work.members)
            everything = [at for member in work.members for at in member.read]
            assert len(everything) == len(set(everything)), "nobody had to read anything again"
    finally:
        cluster.stop(timeout_s=5)
