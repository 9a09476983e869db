"""Topics created, deleted and grown. Cases: Kafka's ``ReplicationControlManagerTest``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidelog.metadata_quorum.controller.decision import ENTRY_BYTES_MAX, entries
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicId
from tidelog.model.replica_counts import effective_min_isr
from tidelog.proto.calls.api import (
    ConfigEntry,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    PartitionGrowth,
    ReplicaAssignment,
    TopicResult,
)
from tidelog.proto.calls.convert import from_proto, to_proto
from tidelog.proto.logs.metadata_codec import encode_batch
from tidelog.proto.logs.metadata_records import ConfigRecord, PartitionRecord, TopicRecord

from .conftest import Bench

NONE = ErrorCode.NONE


@pytest.fixture
def three(bench: Bench) -> Bench:
    bench.up(1, 2, 3)
    return bench


def grow(bench: Bench, name: str, count: int, *replicas: tuple[int, ...], first: int = 0) -> TopicResult:
    assignments = tuple(
        ReplicaAssignment(first + number, tuple(NodeId(node) for node in nodes))
        for number, nodes in enumerate(replicas)
    )
    result: TopicResult = bench.ask(CreatePartitionsRequest((PartitionGrowth(name, count, assignments),))).topics[0]
    return result


def delete(bench: Bench, *names: str, ids: tuple[bytes, ...] = ()) -> list[ErrorCode]:
    response = bench.ask(DeleteTopicsRequest(names, tuple(TopicId(found) for found in ids)))
    return [found.error for found in response.topics]


def test_created_topic(three: Bench) -> None:
    created = three.create("flights", partitions=6, factor=3, min_insync_replicas="2", retention_ms="1000")
    assert (created.error, created.num_partitions, created.replication_factor) == (NONE, 6, 3)
    topic = three.topic("flights")
    assert topic.topic_id == created.topic_id
    assert sorted(topic.partitions) == list(range(6))
    for partition in topic.partitions.values():
        assert partition.leader == partition.replicas[0]
        assert sorted(partition.isr) == [1, 2, 3]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert sorted(partition.leader for partition in topic.partitions.values()) == [1, 1, 2, 2, 3, 3]
    assert dict(three.controller.committed.config("topic", "flights")) == {
        "min.insync.replicas": "2",
        "retention.ms": "1000",
    }


def test_defaults_of_the_cluster() -> None:
    bench = Bench(num_partitions="4", default_replication_factor="2")
    bench.up(1, 2)
    created = bench.create("t")
    assert (created.num_partitions, created.replication_factor) == (4, 2)


@pytest.mark.parametrize(
    ("name", "more", "error", "text"),
    [
        ("", {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "expected a topic name, found an empty one"),
        ("..", {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "other than '.' and '..'"),
        ("a b", {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII letters, digits, '.', '_' and '-', found 'a b'"),
        ("ä", {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "found 'ä'"),
        ("x" * 250, {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "at most 249 characters, found 250"),
        ("old", {}, ErrorCode.TOPIC_ALREADY_EXISTS, "found 'old', which exists"),
        ("dot_ted", {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "found 'dot_ted' beside 'dot.ted'"),
        ("t", {"factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR, "at most 3, the number of registered brokers"),
        ("t", {"factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR, "at least 1, or -1 for the default, found 0"),
        ("t", {"partitions": 0}, ErrorCode.INVALID_PARTITIONS, "at least 1, or -1 for the default, found 0"),
        ("t", {"partitions": -5}, ErrorCode.INVALID_PARTITIONS, "found -5"),
        ("t", {"partitions": 10_001}, ErrorCode.POLICY_VIOLATION, "at most 10000 new partitions in a request"),
        (
            "t",
            {"factor": 1, "min_insync_replicas": "2"},
            ErrorCode.INVALID_CONFIG,
            "min.insync.replicas: expected at most 1, the replication factor of 't', found 2",
        ),
        (
            "t",
            {"retention_sm": "2"},
            ErrorCode.INVALID_CONFIG,
            "unknown setting 'retention.sm'; did you mean retention.ms?",
        ),
        (
            "t",
            {"retention_ms": "soon"},
            ErrorCode.INVALID_CONFIG,
            "retention.ms: expected a whole number of at least -1, found 'soon'",
        ),
        (
            "t",
            {"cleanup_policy": "burn"},
            ErrorCode.INVALID_CONFIG,
            "cleanup.policy: expected a list of compact | delete, found 'burn'",
        ),
        ("__cluster_metadata", {}, ErrorCode.INVALID_REQUEST, "the quorum's own log"),
    ],
)
def test_refused(three: Bench, name: str, more: dict[str, Any], error: ErrorCode, text: str) -> None:
    three.create("old", partitions=1, factor=1)
    three.create("dot.ted", partitions=1, factor=1)
    offset = three.offset
    more.setdefault("partitions", 1)
    more.setdefault("factor", 1)
    created = three.create(name, **more)
    assert created.error is error
    assert text in created.error_message
    assert three.offset == offset


def test_inherited_min_isr_over_the_replication_factor_is_capped() -> None:
    """As in Kafka (``getTopicEffectiveMinIsr``): only what the topic itself asks for is refused."""
    bench = Bench(min_insync_replicas="2")
    bench.up(1)
    assert bench.create("t", (1,)).error is NONE
    topic = bench.topic("t")
    wanted = bench.controller.configs.min_isr(bench.controller.committed, topic)
    assert (wanted, effective_min_isr(wanted, topic.partitions[0].replicas)) == (2, 1)


@pytest.mark.parametrize(
    ("replicas", "text"),
    [
        (((1, 1),), "on different brokers, found (1, 1)"),
        (((),), "expected replicas of partition 0, found none"),
        (((1, 7),), "expected registered brokers for partition 0, found 7"),
        (((1, 2), (1,)), "expected 2 replicas of partition 1, found 1"),
        (((3,),), "expected a live broker among those of partition 0, found (3,)"),
    ],
)
def test_bad_assignments(three: Bench, replicas: tuple[tuple[int, ...], ...], text: str) -> None:
    three.silence(3)
    created = three.create("t", *replicas)
    assert created.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert text in created.error_message


def test_assignments_with_gaps_or_counts(three: Bench) -> None:
    one = (NodeId(1),)
    gap = NewTopic("t", assignments=(ReplicaAssignment(0, one), ReplicaAssignment(2, one)))
    twice = NewTopic("u", assignments=(ReplicaAssignment(0, one), ReplicaAssignment(0, one)))
    counted = NewTopic("v", 1, -1, (ReplicaAssignment(0, one),))
    response = three.ask(CreateTopicsRequest((gap, twice, counted)))
    assert [found.error for found in response.topics] == [
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REQUEST,
    ]


def test_fenced_replica_is_not_in_the_first_isr(three: Bench) -> None:
    three.silence(2)
    three.create("t", (2, 3, 1))
    found = three.partition("t")
    assert (found.leader, found.isr, found.replicas) == (3, (3, 1), (2, 3, 1))


def test_validate_only_creates_nothing(three: Bench) -> None:
    offset = three.offset
    response = three.ask(CreateTopicsRequest((NewTopic("t", 2, 3),), validate_only=True))
    assert (response.topics[0].error, response.topics[0].num_partitions) == (NONE, 2)
    assert three.offset == offset
    assert three.controller.committed.topic("t") is None


def test_names_in_one_request_are_judged_together(three: Bench) -> None:
    topics = tuple(NewTopic(name, 1, 1) for name in ("a.b", "a_b", "c", "d", "d"))
    response = three.ask(CreateTopicsRequest(topics))
    assert [found.error for found in response.topics] == [
        NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]


def test_partitions_of_a_request_and_of_the_cluster_are_bounded() -> None:
    bench = Bench(controller_partitions_max="10")
    bench.up(1)
    assert bench.create("a", partitions=8, factor=1).error is NONE
    refused = bench.create("b", partitions=3, factor=1)
    assert refused.error is ErrorCode.POLICY_VIOLATION
    assert (
        "at most 10 partitions in the cluster (controller.partitions.max), found 8 and 3 more" in refused.error_message
    )
    response = bench.ask(CreateTopicsRequest((NewTopic("c", 2, 1), NewTopic("d", 1, 1))))
    assert [found.error for found in response.topics] == [NONE, ErrorCode.POLICY_VIOLATION]
    assert grow(bench, "a", 9).error is ErrorCode.POLICY_VIOLATION


def test_setting_named_twice(three: Bench) -> None:
    topic = NewTopic("t", 1, 1, configs=(ConfigEntry("retention.ms", "1"), ConfigEntry("retention.ms", "2")))
    assert three.ask(CreateTopicsRequest((topic,))).topics[0].error is ErrorCode.INVALID_CONFIG


def test_large_topic_appears_at_once_though_it_fills_several_entries(three: Bench) -> None:
    request = CreateTopicsRequest((NewTopic("big", 5_000, 3, configs=(ConfigEntry("retention.ms", "1"),)),))
    records = three.controller.decide(request, three.now_ms).records
    split = list(entries(records))
    assert len(split) > 2
    assert all(len(encode_batch(entry)) <= ENTRY_BYTES_MAX for entry in split)
    assert isinstance(records[-1], TopicRecord)
    assert isinstance(records[-2], ConfigRecord)
    assert all(isinstance(record, PartitionRecord) for record in records[:-2])
    for entry in split[:-1]:
        three.take(entry)
        assert three.controller.committed.topic("big") is None
    three.take(split[-1])
    assert len(three.topic("big").partitions) == 5_000


# --- Deleting ---


def test_delete(three: Bench) -> None:
    three.create("a", partitions=2, factor=2, retention_ms="1")
    created = three.create("b", partitions=2, factor=2)
    assert delete(three, "a", "nope", ids=(created.topic_id, b"?" * 16)) == [
        NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    image = three.controller.committed
    assert not image.topics
    assert not image.configs
    assert image.partition_count == 0
    assert three.create("a", partitions=1, factor=1).topic_id != created.topic_id


def test_topic_named_twice_does_not_grow(three: Bench) -> None:
    three.create("a", partitions=1, factor=1)
    growths = (PartitionGrowth("a", 2), PartitionGrowth("a", 3))
    response = three.ask(CreatePartitionsRequest(growths))
    assert [found.error for found in response.topics] == [ErrorCode.INVALID_REQUEST] * 2
    assert len(three.topic("a").partitions) == 1


def test_topic_named_twice_is_not_deleted(three: Bench) -> None:
    created = three.create("a", partitions=1, factor=1)
    assert delete(three, "a", ids=(created.topic_id,)) == [ErrorCode.INVALID_REQUEST] * 2
    assert delete(three, "a", "a") == [ErrorCode.INVALID_REQUEST] * 2
    assert delete(three, "a") == [NONE]


def test_delete_may_be_switched_off() -> None:
    bench = Bench(delete_topic_enable="false")
    bench.up(1)
    bench.create("a", (1,))
    assert delete(bench, "a") == [ErrorCode.TOPIC_DELETION_DISABLED]


# --- Growing ---


def test_grow(three: Bench) -> None:
    three.create("t", partitions=2, factor=2)
    before = three.partition("t", 1)
    assert grow(three, "t", 5).error is NONE
    topic = three.topic("t")
    assert sorted(topic.partitions) == [0, 1, 2, 3, 4]
    assert topic.partitions[1] == before
    assert all(len(partition.replicas) == 2 for partition in topic.partitions.values())


def test_grow_by_assignments(three: Bench) -> None:
    three.create("t", (1, 2))
    assert grow(three, "t", 3, (2, 3), (3, 1), first=1).error is NONE
    assert three.partition("t", 2).replicas == (3, 1)


@pytest.mark.parametrize(
    ("count", "replicas", "error", "text"),
    [
        (2, (), ErrorCode.INVALID_PARTITIONS, "expected more than the 2 partitions that 't' has, found 2"),
        (1, (), ErrorCode.INVALID_PARTITIONS, "found 1"),
        (4, ((1, 2),), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "assignments of the 2 new partitions, found 1"),
        (3, ((1,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "expected 2 replicas of partition 2, found 1"),
        (20_000, (), ErrorCode.POLICY_VIOLATION, "at most 10000"),
    ],
)
def test_grow_refused(
    three: Bench, count: int, replicas: tuple[tuple[int, ...], ...], error: ErrorCode, text: str
) -> None:
    three.create("t", partitions=2, factor=2)
    result = grow(three, "t", count, *replicas, first=2)
    assert result.error is error
    assert text in result.error_message


def test_grow_of_an_internal_topic(three: Bench) -> None:
    """A group's place is its id's hash modulo the number of partitions: growth would lose what it committed."""
    three.create("__consumer_offsets", partitions=2, factor=1)
    result = grow(three, "__consumer_offsets", 3)
    assert result.error is ErrorCode.INVALID_REQUEST
    assert "__consumer_offsets" in result.error_message
    assert len(three.topic("__consumer_offsets").partitions) == 2


def test_grow_of_an_unknown_topic(three: Bench) -> None:
    assert grow(three, "t", 2).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_grow_numbers_must_go_on(three: Bench) -> None:
    three.create("t", (1, 2))
    assert grow(three, "t", 2, (2, 3), first=0).error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_restored_topic_has_the_id_that_it_had(three: Bench) -> None:
    wanted = TopicId(b"restored-topic-0")

    def create(name: str) -> ErrorCode:
        found: ErrorCode = three.ask(CreateTopicsRequest((NewTopic(name, 1, 1, topic_id=wanted),))).topics[0].error
        return found

    assert create("flights") is NONE
    assert three.topic("flights").topic_id == wanted
    assert create("others") is ErrorCode.INVALID_REQUEST, "the id is taken"


def test_a_repeated_request_finds_its_own_topic_and_no_other(three: Bench) -> None:
    request = CreateTopicsRequest((NewTopic("t", 3, 2, topic_id=TopicId(b"drawn-by-client-")),))
    first, again = three.ask(request), three.ask(request)
    assert first == again
    assert (first.topics[0].error, first.topics[0].num_partitions, first.topics[0].replication_factor) == (NONE, 3, 2)
    assert len(three.topic("t").partitions) == 3
    for other in (TopicId(b"drawn-by-another"), TopicId(b"")):
        (found,) = three.ask(CreateTopicsRequest((NewTopic("t", 3, 2, topic_id=other),))).topics
        assert found.error is ErrorCode.TOPIC_ALREADY_EXISTS


def test_an_id_is_no_shorter_than_others(three: Bench) -> None:
    item = NewTopic("t", 1, 1, topic_id=TopicId(b"short"))
    (found,) = three.ask(CreateTopicsRequest((item,))).topics
    assert found.error is ErrorCode.INVALID_REQUEST
    assert found.error_message == "expected a topic id of 16 bytes, found 5"


def test_clients_of_release_0_1_say_no_id(three: Bench) -> None:
    for name in ("t", "u"):
        item = from_proto(NewTopic, to_proto(replace(NewTopic(name, 1, 1), topic_id=TopicId(b""))))
        (found,) = three.ask(CreateTopicsRequest((item,))).topics
        assert found.error is NONE
        assert len(found.topic_id) == 16
