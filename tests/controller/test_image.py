"""The image: its transition table, its snapshots, what it says it changed, and that a change stays cheap."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.metadata_quorum.image.change import BrokenMetadata, apply_records, difference
from tidelog.metadata_quorum.image.image import MetadataImage, TopicImage
from tidelog.metadata_quorum.image.snapshot import (
    BadSnapshot,
    decode_snapshot,
    encode_snapshot,
    image_from_records,
    image_records,
)
from tidelog.model.ids import (
    BrokerEpoch,
    ControllerEpoch,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    ProducerId,
    TopicId,
    TopicIdPartition,
)
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.calls.controller_api import Endpoint
from tidelog.proto.calls.quota_api import QuotaEntity
from tidelog.proto.logs.metadata_records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DirectoryList,
    FeatureLevelRecord,
    MetadataRecord,
    NodeList,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)
DIR = DirectoryId(b"d" * 16)


def broker(node: int, epoch: int, **more: Any) -> RegisterBrokerRecord:
    values: dict[str, Any] = {
        "node_id": NodeId(node),
        "incarnation_id": bytes([epoch]) * 16,
        "broker_epoch": BrokerEpoch(epoch),
        "listeners": (Endpoint("CLIENT", "127.0.0.1", 9092),),
        "rack": None,
        "fenced": True,
        "in_controlled_shutdown": False,
        "log_dirs": (DIR,),
        "features": (),
    }
    return RegisterBrokerRecord(**(values | more))


def part(topic_id: TopicId, number: int, replicas: tuple[int, ...] = (1, 2), leader: int = 1) -> PartitionRecord:
    nodes = tuple(NodeId(node) for node in replicas)
    return PartitionRecord(
        topic_id,
        number,
        nodes,
        nodes,
        (),
        (),
        (),
        (),
        NodeId(leader),
        LeaderEpoch(0),
        PartitionEpoch(0),
        False,
        (DIR,) * len(nodes),
    )


def after(*records: MetadataRecord, base: MetadataImage | None = None) -> MetadataImage:
    found = base or MetadataImage()
    return apply_records(found, records, Offset(found.offset + 1), ControllerEpoch(1))[0]


def test_broker_registration() -> None:
    image = after(broker(1, 5))
    found = image.broker(NodeId(1))
    assert found is not None
    assert (found.broker_epoch, found.fenced, found.active, found.registered_at) == (5, True, False, 0)
    image = after(BrokerRegistrationChangeRecord(NodeId(1), BrokerEpoch(5), fenced=False), base=image)
    assert image.is_active(NodeId(1))
    image = after(BrokerRegistrationChangeRecord(NodeId(1), BrokerEpoch(5), in_controlled_shutdown=True), base=image)
    assert not image.is_active(NodeId(1))
    image = after(BrokerRegistrationChangeRecord(NodeId(1), BrokerEpoch(5), log_dirs=DirectoryList(())), base=image)
    found = image.broker(NodeId(1))
    assert found is not None
    assert found.log_dirs == ()
    assert found.registered_at == 0


def test_highest_broker_epoch_outlives_the_registration() -> None:
    image = after(broker(1, 5), UnregisterBrokerRecord(NodeId(1), BrokerEpoch(5)))
    assert image.broker(NodeId(1)) is None
    assert image.broker_epoch_highest == 5
    assert decode_snapshot(encode_snapshot(image)).broker_epoch_highest == 5


def test_partitions_before_their_topic_are_invisible() -> None:
    image = after(part(A, 0), part(A, 1))
    assert not image.topics
    assert image.partition(A, 0) is None
    assert image.partitions_of(NodeId(1)) == []
    assert image.partition_count == 0
    image, delta = apply_records(image, [part(A, 2), TopicRecord("t", A)], Offset(1), ControllerEpoch(1))
    topic = image.topic("t")
    assert topic is not None
    assert sorted(topic.partitions) == [0, 1, 2]
    assert not image.unpublished
    assert image.partition_count == 3
    assert delta.topics_created == {A}
    assert delta.partitions == {TopicIdPartition(A, number) for number in range(3)}
    assert image.partitions_of(NodeId(2)) == [TopicIdPartition(A, number) for number in range(3)]


def test_removing_an_unpublished_topic() -> None:
    image = after(part(A, 0))
    assert not after(RemoveTopicRecord(A), base=image).unpublished


def test_partition_change() -> None:
    image = after(part(A, 0), TopicRecord("t", A))
    at = TopicIdPartition(A, 0)
    image, delta = apply_records(
        image,
        [PartitionChangeRecord(A, 0, isr=NodeList((NodeId(2),)), leader=NodeId(-1))],
        Offset(1),
        ControllerEpoch(1),
    )
    changed = image.partition(*at)
    assert changed is not None
    assert (changed.isr, changed.leader, changed.leader_epoch, changed.partition_epoch) == ((2,), -1, 1, 1)
    assert delta.partitions == {at}
    assert at in image.leaderless
    image = after(PartitionChangeRecord(A, 0, isr=NodeList(())), base=image)
    changed = image.partition(*at)
    assert changed is not None
    assert (changed.isr, changed.leader_epoch, changed.partition_epoch) == ((), 1, 2)
    image = after(PartitionChangeRecord(A, 0, leader=NodeId(2)), base=image)
    assert at not in image.leaderless
    assert image.leads_any(NodeId(2))
    assert not image.leads_any(NodeId(1))


def test_change_of_replicas_moves_the_index() -> None:
    image = after(part(A, 0), TopicRecord("t", A))
    image = after(
        PartitionChangeRecord(A, 0, replicas=NodeList((NodeId(2), NodeId(3))), directories=DirectoryList((DIR, DIR))),
        base=image,
    )
    assert image.partitions_of(NodeId(1)) == []
    assert NodeId(1) not in image.replicas
    assert image.partitions_of(NodeId(3)) == [TopicIdPartition(A, 0)]


def test_removing_a_topic_takes_its_settings_along() -> None:
    image = after(part(A, 0), ConfigRecord("topic", "a.b", "retention.ms", "5"), TopicRecord("a.b", A))
    assert dict(image.collision_names) == {"a_b": "a.b"}
    image, delta = apply_records(image, [RemoveTopicRecord(A)], Offset(1), ControllerEpoch(1))
    assert image.topic("a.b") is None
    assert not image.configs
    assert not image.replicas
    assert not image.collision_names
    assert [topic.name for topic in delta.topics_deleted] == ["a.b"]
    assert delta.configs == {ConfigResource("topic", "a.b")}
    assert delta.partitions == frozenset()


def test_topic_made_and_removed_in_one_entry_never_was() -> None:
    image, delta = apply_records(
        MetadataImage(), [part(A, 0), TopicRecord("t", A), RemoveTopicRecord(A)], Offset(0), ControllerEpoch(1)
    )
    assert not image.topics
    assert delta.topics_created == frozenset()
    assert delta.topics_deleted == ()


def test_topic_made_anew_under_its_name() -> None:
    image = after(part(A, 0), TopicRecord("t", A))
    image, delta = apply_records(
        image, [RemoveTopicRecord(A), part(B, 0), TopicRecord("t", B)], Offset(1), ControllerEpoch(1)
    )
    topic = image.topic("t")
    assert topic is not None
    assert topic.topic_id == B
    assert [gone.topic_id for gone in delta.topics_deleted] == [A]
    assert delta.topics_created == {B}


def test_settings_ids_features_acls_quotas() -> None:
    acl = AccessControlEntryRecord(b"1" * 16, "topic", "t", "literal", "User:x", "*", "read", "allow")
    entity = (QuotaEntity("user", "x"), QuotaEntity("client-id", None))
    image = after(
        ConfigRecord("broker", "", "log.retention.ms", "7"),
        ProducerIdsRecord(NodeId(1), BrokerEpoch(1), ProducerId(1000)),
        FeatureLevelRecord("metadata.version", 1),
        acl,
        ClientQuotaRecord(entity, "producer_byte_rate", 1.5),
    )
    assert dict(image.config("broker", "")) == {"log.retention.ms": "7"}
    assert image.next_producer_id == 1000
    assert dict(image.features) == {"metadata.version": 1}
    assert dict(image.acls) == {acl.acl_id: acl}
    assert {key: dict(value) for key, value in image.quotas.items()} == {entity: {"producer_byte_rate": 1.5}}
    assert decode_snapshot(encode_snapshot(image)) == image
    image = after(
        ConfigRecord("broker", "", "log.retention.ms", None),
        RemoveAccessControlEntryRecord(acl.acl_id),
        ClientQuotaRecord(entity, "producer_byte_rate", None),
        base=image,
    )
    assert not image.configs
    assert not image.acls
    assert not image.quotas


@pytest.mark.parametrize(
    "record",
    [
        PartitionChangeRecord(A, 7, leader=NodeId(1)),
        PartitionChangeRecord(B, 0, leader=NodeId(1)),
        RemoveTopicRecord(B),
        TopicRecord("t", B),
        TopicRecord("other", A),
        BrokerRegistrationChangeRecord(NodeId(1), BrokerEpoch(4), fenced=False),
        BrokerRegistrationChangeRecord(NodeId(2), BrokerEpoch(5), fenced=False),
    ],
)
def test_records_that_do_not_fit_are_bugs(record: MetadataRecord) -> None:
    image = after(broker(1, 5), part(A, 0), TopicRecord("t", A))
    with pytest.raises(BrokenMetadata):
        after(record, base=image)


def test_an_older_image_stays_as_it_was() -> None:
    old = after(part(A, 0), TopicRecord("t", A))
    kept = encode_snapshot(old)
    after(PartitionChangeRecord(A, 0, leader=NodeId(2)), RemoveTopicRecord(A), base=old)
    assert encode_snapshot(old) == kept


# --- Snapshots ---


def test_damaged_snapshots_are_refused() -> None:
    good = encode_snapshot(after(broker(1, 5), part(A, 0), TopicRecord("t", A)))
    assert decode_snapshot(good).topic("t") is not None
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x40
        with pytest.raises(BadSnapshot):
            decode_snapshot(bytes(bad))
    for length in range(len(good)):
        with pytest.raises(BadSnapshot):
            decode_snapshot(good[:length])
    with pytest.raises(BadSnapshot):
        decode_snapshot(good + b"\0")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_snapshot_error(data: bytes) -> None:
    with pytest.raises(BadSnapshot):
        decode_snapshot(data)


# --- Properties ---

TOPIC_IDS = [TopicId(bytes([number]) * 16) for number in (1, 2, 3)]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["create", "remove", "change", "grow", "broker", "config", "ids"]), st.integers(0, 5)),
    max_size=30,
)


def record_for(image: MetadataImage, operation: str, number: int, epoch: int) -> list[MetadataRecord]:
    """Records of this kind that fit the image; none where nothing fits."""
    topic_id = TOPIC_IDS[number % len(TOPIC_IDS)]
    topic = image.topics.get(topic_id)
    if operation == "create" and topic is None and topic_id not in image.unpublished:
        return [part(topic_id, 0), part(topic_id, 1, (2, 3), 2), TopicRecord(f"topic.{number % 3}", topic_id)]
    if operation == "remove" and topic is not None:
        return [RemoveTopicRecord(topic_id)]
    if operation == "change" and topic is not None:
        leader = NodeId(-1 if number % 2 else 2)
        return [PartitionChangeRecord(topic_id, number % len(topic.partitions), leader=leader)]
    if operation == "grow" and topic is not None:
        return [part(topic_id, len(topic.partitions), (number % 4, 9), 9)]
    if operation == "broker":
        return [broker(number, epoch)]
    if operation == "config":
        return [ConfigRecord("broker", "", f"name{number}", None if number == 5 else str(epoch))]
    if operation == "ids":
        return [ProducerIdsRecord(NodeId(1), BrokerEpoch(1), ProducerId(1000 * epoch))]
    return []


@settings(max_examples=150, deadline=None)
@given(OPERATIONS)
def test_image_equals_the_one_rebuilt_from_its_snapshot(operations: list[tuple[str, int]]) -> None:
    """After any history: the same image from its records, the same indexes as counted anew, the same delta."""
    image = MetadataImage()
    for epoch, (operation, number) in enumerate(operations, start=1):
        records = record_for(image, operation, number, epoch)
        before = image
        image, delta = apply_records(image, records, Offset(epoch), ControllerEpoch(1))
        slow = difference(before, image)
        assert delta.partitions == slow.partitions
        assert delta.topics_created == slow.topics_created
        assert delta.topics_deleted == slow.topics_deleted
        assert delta.brokers >= slow.brokers
        assert delta.configs >= slow.configs

    rebuilt = image_from_records(image_records(image), image.offset, image.epoch)
    assert rebuilt == image
    assert decode_snapshot(encode_snapshot(image)) == image
    assert encode_snapshot(rebuilt) == encode_snapshot(image)
    every = {
        TopicIdPartition(topic_id, number): partition
        for topic_id, topic in image.topics.items()
        for number, partition in topic.partitions.items()
    }
    assert image.partition_count == len(every)
    assert set(image.leaderless) == {at for at, partition in every.items() if partition.leader < 0}
    for node in range(10):
        held = [at for at, partition in sorted(every.items()) if node in partition.replicas]
        assert image.partitions_of(NodeId(node)) == held


def test_partitions_come_in_order() -> None:
    image = after(*(part(A, number) for number in (3, 0, 2, 1)), TopicRecord("t", A))
    topic = image.topic("t")
    assert isinstance(topic, TopicImage)
    assert [partition.partition for partition in topic.in_order()] == [0, 1, 2, 3]
    assert topic.replication_factor == 2


def cluster_of(partitions: int) -> MetadataImage:
    return after(
        *(part(A, number, (number % 50, 50 + number % 50)) for number in range(partitions)), TopicRecord("t", A)
    )


def cost(image: MetadataImage) -> float:
    """Seconds for one change, the best of many rounds: a slow machine only ever adds."""
    best = float("inf")
    for round_number in range(40):
        begun = time.perf_counter()
        for number in range(50):
            after(PartitionChangeRecord(A, number, leader=NodeId(round_number % 2)), base=image)
        best = min(best, (time.perf_counter() - begun) / 50)
    return best


def test_a_change_costs_the_same_at_ten_thousand_partitions() -> None:
    """At most twice what it takes at 100."""
    small, large = cost(cluster_of(100)), cost(cluster_of(10_000))
    assert large <= 2 * small, f"{large * 1e6:.1f} µs against {small * 1e6:.1f} µs"
