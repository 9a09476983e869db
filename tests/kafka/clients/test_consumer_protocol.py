"""Groups of the consumer protocol (KIP-848), their members unmodified librdkafka: shares, restarts, regular
expressions, offsets, a member and a coordinator that die."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.kafka.kafka_clients import Sent, confluent_produce
from tests.kafka.wire_client import WireClient
from tidelog.groups.routing import partition_for
from tidelog.model.errors import ErrorCode
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.testing.cluster import Cluster

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, TopicPartition

PARTITIONS = 6
BOUND_S = 90.0
CONFIG = {"group.consumer.heartbeat.interval.ms": "200", "group.consumer.session.timeout.ms": "6000"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc", config=CONFIG) as made:
        yield made


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc", config={**CONFIG, "min.insync.replicas": "2"}) as made:
        yield made


class Member:
    """A member; what it was handed out, and what it has read."""

    def __init__(self, bootstrap: str, group: str, topic: str, **options: Any) -> None:
        from confluent_kafka import Consumer

        self.revoked: set[int] = set()
        self.lost = False
        self.read: list[tuple[int, int]] = []
        self.failures: list[KafkaError] = []
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer",
             "auto.offset.reset": "earliest", "enable.auto.commit": False,
             "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 200, **options}
        )  # fmt: skip
        self.consumer.subscribe([topic], on_revoke=self._revoked, on_lost=self._lost)

    def _revoked(self, _: object, partitions: list[TopicPartition]) -> None:
        self.revoked.update(at.partition for at in partitions)

    def _lost(self, _: object, partitions: list[TopicPartition]) -> None:
        self.lost = True

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is None:
            return
        if (error := message.error()) is not None:
            self.failures.append(error)
        else:
            self.read.append((message.partition() or 0, message.offset() or 0))

    @property
    def has(self) -> set[tuple[str, int]]:
        return {(at.topic, at.partition) for at in self.consumer.assignment()}

    @property
    def partitions(self) -> set[int]:
        return {partition for _, partition in self.has}

    def close(self) -> None:
        self.consumer.close()


def until(condition: Callable[[], bool], *members: Member) -> None:
    """Let the members poll until it holds."""
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, [(member.has, member.failures) for member in members]
        for member in members:
            member.poll()


def filled(cluster: Cluster, topic: str, per_partition: int = 10, **options: Any) -> None:
    cluster.create_topic(topic, partitions=PARTITIONS, **options)
    for partition in range(PARTITIONS):
        records = [Sent(None, b"%d" % number, (), 1) for number in range(per_partition)]
        confluent_produce(cluster.kafka_bootstrap, topic, partition, records, "none")


def holds_all(member: Member) -> bool:
    return len(member.partitions) == PARTITIONS


def shared(*members: Member) -> bool:
    """Whether each partition is held by one member, and the shares are even."""
    sizes = sorted(len(member.partitions) for member in members)
    return sum(sizes) == PARTITIONS and sizes[-1] - sizes[0] <= 1


def test_members_come_share_and_go_and_each_record_is_read_once(
    cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    topic, group = topic_name(), topic_name("group")
    filled(cluster, topic)
    with ExitStack() as stack:
        first = stack.enter_context(closing(Member(cluster.kafka_bootstrap, group, topic)))
        until(lambda: len(first.read) == PARTITIONS * 10, first)
        first.consumer.commit(asynchronous=False)
        second = stack.enter_context(closing(Member(cluster.kafka_bootstrap, group, topic)))
        until(lambda: shared(first, second), first, second)
        assert first.partitions.isdisjoint(second.partitions)
        assert first.revoked == second.partitions, "what stays is not taken away for a moment"
        kept = first.partitions
        third = stack.enter_context(closing(Member(cluster.kafka_bootstrap, group, topic)))
        until(lambda: shared(first, second, third), first, second, third)
        assert first.partitions <= kept
        third.close()
        until(lambda: shared(first, second), first, second)
        second.close()
        until(lambda: len(first.partitions) == PARTITIONS, first)
        for member in (first, second, third):
            assert not member.failures
        assert sorted(first.read + second.read + third.read) == sorted(set(first.read)), "committed, so not read again"


def test_the_sdks_consumer_and_librdkafka_share_a_group(cluster: Cluster, topic_name: Callable[..., str]) -> None:
    topic, group = topic_name(), topic_name("group")
    filled(cluster, topic)
    read: list[tuple[int, int]] = []
    with ExitStack() as stack:
        foreign = stack.enter_context(closing(Member(cluster.kafka_bootstrap, group, topic)))
        until(lambda: holds_all(foreign), foreign)
        ours = stack.enter_context(
            cluster.consumer(group_id=group, group_protocol="consumer", auto_offset_reset="earliest")
        )
        ours.subscribe([topic])

        def poll() -> int:
            read.extend((record.partition, record.offset) for record in ours.poll(0.02))
            return len(ours.assignment())

        until(lambda: poll() == len(foreign.partitions) == PARTITIONS // 2, foreign)
        assert {at.partition for at in ours.assignment()} | foreign.partitions == set(range(PARTITIONS))
        foreign.close()
        until(lambda: poll() == PARTITIONS)
        until(lambda: poll() > 0 and len({*read, *foreign.read}) == PARTITIONS * 10)


@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_a_member_may_choose_the_assignor(cluster: Cluster, topic_name: Callable[..., str], assignor: str) -> None:
    topic, group = topic_name(), topic_name("group")
    cluster.create_topic(topic, partitions=PARTITIONS)
    options = {"group.remote.assignor": assignor}
    with (
        closing(Member(cluster.kafka_bootstrap, group, topic, **options)) as first,
        closing(Member(cluster.kafka_bootstrap, group, topic, **options)) as second,
    ):
        until(lambda: shared(first, second), first, second)
        if assignor == "range":
            assert {tuple(sorted(each.partitions)) for each in (first, second)} == {(0, 1, 2), (3, 4, 5)}


def test_a_regular_expression_takes_in_a_topic_that_comes_later(
    cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    stem, group = topic_name("many"), topic_name("group")
    cluster.create_topic(f"{stem}-a", partitions=2)
    cluster.create_topic(f"x{stem}-a", partitions=2)
    with closing(Member(cluster.kafka_bootstrap, group, f"^{stem}-[ab]")) as member:
        until(lambda: member.has == {(f"{stem}-a", 0), (f"{stem}-a", 1)}, member)
        cluster.create_topic(f"{stem}-b", partitions=1)
        cluster.create_topic(f"{stem}-bb", partitions=1)
        until(lambda: (f"{stem}-b", 0) in member.has, member)
        assert len(member.has) == 3, "a pattern matches whole names"


def test_an_unreadable_regular_expression_is_refused(cluster: Cluster, topic_name: Callable[..., str]) -> None:
    with closing(Member(cluster.kafka_bootstrap, topic_name("group"), r"^(a)\1")) as member:
        until(lambda: bool(member.failures), member)
        assert "The regular expression is not valid" in str(member.failures[0])


def test_a_static_member_comes_back_to_its_partitions(cluster: Cluster, topic_name: Callable[..., str]) -> None:
    topic, group = topic_name(), topic_name("group")
    cluster.create_topic(topic, partitions=PARTITIONS)
    with closing(Member(cluster.kafka_bootstrap, group, topic)) as other:
        first = Member(cluster.kafka_bootstrap, group, topic, **{"group.instance.id": "i"})
        until(lambda: shared(first, other), first, other)
        mine = first.partitions
        before = other.partitions
        first.close()
        with closing(Member(cluster.kafka_bootstrap, group, topic, **{"group.instance.id": "i"})) as again:
            until(lambda: again.partitions == mine, again, other)
            assert other.partitions == before
            with closing(Member(cluster.kafka_bootstrap, group, topic, **{"group.instance.id": "i"})) as thief:
                until(lambda: bool(thief.failures), again, other, thief)
                assert "still used by another member" in str(thief.failures[0])
            assert again.partitions == mine


def test_a_dead_members_partitions_go_to_the_others(cluster: Cluster, topic_name: Callable[..., str]) -> None:
    """A member that no longer polls is one that is gone: its client leaves after ``max.poll.interval.ms``; one whose
    process was killed is fenced after the session timeout (``tests/groups/test_consumer_groups.py``)."""
    topic, group = topic_name(), topic_name("group")
    filled(cluster, topic)
    options = {"max.poll.interval.ms": 2000}
    with (
        closing(Member(cluster.kafka_bootstrap, group, topic)) as alive,
        closing(Member(cluster.kafka_bootstrap, group, topic, **options)) as dead,
    ):
        until(lambda: shared(alive, dead), alive, dead)
        until(lambda: len(alive.partitions) == PARTITIONS, alive)


def test_a_transaction_commits_a_members_offsets(cluster: Cluster, topic_name: Callable[..., str]) -> None:
    from confluent_kafka import Producer, TopicPartition

    topic, group = topic_name(), topic_name("group")
    filled(cluster, topic)
    with closing(Member(cluster.kafka_bootstrap, group, topic)) as member:
        until(lambda: len(member.read) == PARTITIONS * 10, member)
        producer = Producer({"bootstrap.servers": cluster.kafka_bootstrap, "transactional.id": group})
        producer.init_transactions(BOUND_S)
        producer.begin_transaction()
        positions = member.consumer.position(member.consumer.assignment())
        producer.send_offsets_to_transaction(positions, member.consumer.consumer_group_metadata(), BOUND_S)
        producer.commit_transaction(BOUND_S)
        asked = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        committed = member.consumer.committed(asked, BOUND_S)
        assert [at.offset for at in committed] == [10] * PARTITIONS


def test_an_empty_group_goes_from_one_protocol_to_the_other(cluster: Cluster, topic_name: Callable[..., str]) -> None:
    topic, group = topic_name(), topic_name("group")
    filled(cluster, topic)
    with closing(Member(cluster.kafka_bootstrap, group, topic, **{"group.protocol": "classic"})) as member:
        until(lambda: len(member.read) == PARTITIONS * 10, member)
        member.consumer.commit(asynchronous=False)
    for protocol in ("consumer", "classic"):
        with closing(Member(cluster.kafka_bootstrap, group, topic, **{"group.protocol": protocol})) as heir:
            until(partial(holds_all, heir), heir)
            assert not heir.read, "the offsets stayed"


def test_administrators_see_the_group(cluster: Cluster, topic_name: Callable[..., str]) -> None:
    from confluent_kafka.admin import AdminClient

    topic, group = topic_name(), topic_name("group")
    cluster.create_topic(topic, partitions=PARTITIONS)
    admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap})
    with closing(Member(cluster.kafka_bootstrap, group, topic)) as member:
        until(lambda: len(member.partitions) == PARTITIONS, member)
        listed = {each.group_id: each for each in admin.list_consumer_groups().result().valid}
        assert (listed[group].type.name, listed[group].state.name) == ("CONSUMER", "STABLE")
        described = admin.describe_consumer_groups([group])[group].result()
        assert described.type.name == "CONSUMER"
        assert [at.partition for at in described.members[0].assignment.topic_partitions] == list(range(PARTITIONS))
    admin.delete_consumer_groups([group])[group].result()
    assert group not in {each.group_id for each in admin.list_consumer_groups().result().valid}


def test_a_group_goes_on_while_its_coordinators_are_killed(three_nodes: Cluster) -> None:
    cluster, topic, group = three_nodes, "load", "readers"
    filled(cluster, topic, replication_factor=3)
    with (
        closing(Member(cluster.kafka_bootstrap, group, topic)) as first,
        closing(Member(cluster.kafka_bootstrap, group, topic)) as second,
    ):
        until(lambda: shared(first, second) and len(first.read) + len(second.read) >= PARTITIONS * 10, first, second)
        first.consumer.commit(asynchronous=False)
        second.consumer.commit(asynchronous=False)
        before = first.partitions, second.partitions
        victim = cluster.leader_of(GROUP_OFFSETS_TOPIC, partition_for(group, 50))
        assert victim is not None
        cluster.kill(victim)
        for partition in range(PARTITIONS):
            confluent_produce(cluster.kafka_bootstrap, topic, partition, [Sent(None, b"more", (), 1)], "none")
        until(lambda: len({*first.read, *second.read}) == PARTITIONS * 11, first, second)
        assert (first.partitions, second.partitions) == before, "the successor found the group as it was"
        assert not first.lost
        assert not second.lost
        with closing(Member(cluster.kafka_bootstrap, group, topic)) as third:
            until(lambda: shared(first, second, third), first, second, third)
        cluster.restart(victim)


def test_without_its_feature_the_protocol_is_neither_offered_nor_served() -> None:
    with Cluster(nodes=1, transport="grpc") as cluster, WireClient(cluster.kafka_bootstrap) as wire:
        cluster.wait_for(lambda: 1 in cluster.node(1).view.image.controllers, "the controller is registered")
        join = {"group_id": "g", "member_id": "m", "rebalance_timeout": 1_000, "subscribed_topic_names": ["t"]}
        for level, upgrade_type in ((0, 2), (1, 1)):
            update = {"feature": "group.version", "max_version_level": level, "upgrade_type": upgrade_type}
            assert wire.ask(57, 2, feature_updates=[update], timeout=60_000).error_code == ErrorCode.NONE
            offered = {each.api_key for each in wire.ask(18, 2).api_keys} & {68, 69}
            assert offered == ({68, 69} if level else set())
            said = wire.ask(68, 1, topic_partitions=[], **join)
            assert (said.error_code == ErrorCode.UNSUPPORTED_VERSION) == (level == 0)
            assert level or "tidelog features upgrade" in said.error_message


def test_an_administrator_removes_members(cluster: Cluster) -> None:
    """LeaveGroup, as ``removeMembersFromConsumerGroup`` sends it: by member id, or for static ones by instance id."""
    cluster.create_topic("removed", partitions=2)
    with WireClient(cluster.kafka_bootstrap) as wire:
        wire.ask(10, 3, key="g-removed")

        def beat(member: str, epoch: int, **changes: Any) -> Any:
            return wire.ask(68, 1, group_id="g-removed", member_id=member, member_epoch=epoch, **changes)

        joining = {"rebalance_timeout": 9_000, "subscribed_topic_names": ["removed"], "topic_partitions": []}
        deadline = time.monotonic() + BOUND_S
        while beat("a", 0, **joining).error_code:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert beat("b", 0, instance_id="i", **joining).error_code == 0
        members = [
            {"member_id": "", "group_instance_id": "i"},
            {"member_id": "a", "group_instance_id": None},
            {"member_id": "nobody", "group_instance_id": None},
            {"member_id": "", "group_instance_id": "nowhere"},
        ]
        left = wire.ask(13, 5, group_id="g-removed", members=members)
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert (left.error_code, [each.error_code for each in left.members]) == (0, [0, 0, unknown, unknown])
        assert [each.group_instance_id for each in left.members] == ["i", None, None, "nowhere"]
        assert beat("a", 1).error_code == unknown
        (described,) = wire.ask(69, 1, group_ids=["g-removed"]).groups
        assert (described.group_state, described.members) == ("Empty", ())
