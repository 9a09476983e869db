"""A cordoned broker gets no new replicas, and keeps those that it has. Cases: KIP-1066, Kafka's
``CordonedLogDirsIntegrationTest``."""

from __future__ import annotations

import pytest

from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.node.replication_settings import CORDONED
from tidelog.proto.calls.api import (
    CreatePartitionsRequest,
    PartitionGrowth,
    ReplicaAssignment,
    TopicResult,
    UnregisterBrokerRequest,
)

from .conftest import Bench

NONE = ErrorCode.NONE


@pytest.fixture
def four(bench: Bench) -> Bench:
    """Four brokers, of which the last is cordoned; ``t`` is on it."""
    bench.up(1, 2, 3, 4)
    assert bench.create("t", (4, 1), (1, 2)).error is NONE
    assert bench.set("broker", "4", CORDONED, "*").error is NONE
    return bench


def grow(bench: Bench, count: int, *assignments: tuple[int, ...]) -> TopicResult:
    named = tuple(ReplicaAssignment(2 + n, tuple(map(NodeId, found))) for n, found in enumerate(assignments))
    return bench.ask(CreatePartitionsRequest((PartitionGrowth("t", count, named),))).topics[0]


def test_new_topics_and_partitions_go_to_the_others(four: Bench) -> None:
    assert four.create("u", partitions=30, factor=3).error is NONE
    assert all(set(four.partition("u", number).replicas) == {1, 2, 3} for number in range(30))
    assert grow(four, 32).error is NONE
    assert all(4 not in four.partition("t", number).replicas for number in range(2, 32))
    assert four.partition("t").replicas == (4, 1), "what it has stays"
    refused = four.create("v", partitions=1, factor=4)
    assert refused.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "at most 3, the number of registered brokers (3 of them live) but for those" in refused.error_message


def test_with_all_cordoned_nothing_new_has_a_place(four: Bench) -> None:
    for node in (1, 2, 3):
        assert four.set("broker", str(node), CORDONED, "*").error is NONE
    refused = four.create("u", partitions=1, factor=1)
    assert refused.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "all are fenced, shutting down or cordoned" in refused.error_message
    assert grow(four, 3).error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert four.set("broker", "2", CORDONED, None, "delete").error is NONE
    assert four.create("u", partitions=1, factor=1).error is NONE
    assert four.partition("u").replicas == (2,)


def test_it_cannot_be_named_for_new_replicas(four: Bench) -> None:
    """KAFKA-20832."""
    for refused in (four.create("u", (1, 4)), grow(four, 3, (4, 1))):
        assert refused.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "expected brokers that are not cordoned, found 4" in refused.error_message
    moved = four.move("t", (1, 4), number=1)
    assert moved.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "tidelog brokers undrain 4" in moved.error_message
    assert four.partition("t", 1).replicas == (1, 2)


def test_replicas_that_are_there_may_stay_in_another_order(four: Bench) -> None:
    assert four.move("t", (1, 4)).error is NONE
    assert four.partition("t").replicas == (1, 4)
    assert four.move("t", (4, 2)).error is NONE
    assert four.move("t", (3, 4)).error is NONE, "another wish before the first one came true"


def test_a_move_that_is_under_way_may_be_asked_for_again_and_taken_back(bench: Bench) -> None:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2))
    assert bench.move("t", (1, 3)).error is NONE
    bench.set("broker", "3", CORDONED, "*")
    assert bench.move("t", (1, 3)).error is NONE
    assert bench.move("t", None).error is NONE
    assert bench.partition("t").replicas == (1, 2)
    assert bench.move("t", (1, 3)).error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_it_outlives_a_snapshot_and_a_new_incarnation(four: Bench) -> None:
    image = four.controller.committed
    assert decode_snapshot(encode_snapshot(image)).is_cordoned(NodeId(4))
    four.silence(4)
    four.up(4)
    four.create("u", partitions=9, factor=1)
    assert all(four.partition("u", number).replicas != (4,) for number in range(9))


def test_it_ends_when_the_broker_is_forgotten(four: Bench) -> None:
    """Another broker under its id has nothing to do with the drain."""
    four.silence(4)
    assert four.ask(UnregisterBrokerRequest(NodeId(4))).error is NONE
    assert not four.controller.committed.is_cordoned(NodeId(4))
    four.up(4)
    assert four.create("u", partitions=1, factor=4).error is NONE


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("4", "/data/1", ErrorCode.INVALID_CONFIG, "cordoned.log.dirs: expected a list of *, found '/data/1'"),
        ("", "*", ErrorCode.INVALID_REQUEST, "expected the id of one broker, found all of them"),
        ("9", "*", ErrorCode.BROKER_ID_NOT_REGISTERED, "expected a registered broker, found 9"),
    ],
)
def test_what_cannot_be_cordoned_is_refused(four: Bench, name: str, value: str, error: ErrorCode, text: str) -> None:
    refused = four.set("broker", name, CORDONED, value)
    assert refused.error is error
    assert text in refused.error_message


def test_a_nodes_own_file_cannot_cordon_it() -> None:
    """Controllers do not read it."""
    with pytest.raises(ConfigError, match="expected it to be set on the running broker"):
        Bench(cordoned_log_dirs="*")
