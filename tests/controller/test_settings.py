"""Settings, features and producer ids. Cases: Kafka's ``ConfigurationControlManagerTest``, KIP-339, KIP-730."""

from __future__ import annotations

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, NodeId, ProducerId
from tidelog.proto.calls.api import (
    AlterResource,
    ConfigChange,
    ConfigResource,
    FeatureUpdate,
    IncrementalAlterConfigsRequest,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tidelog.proto.calls.backup_api import AdvanceProducerIdsRequest, AdvanceProducerIdsResponse
from tidelog.proto.calls.controller_api import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from tidelog.proto.logs.metadata_records import ProducerIdsRecord

from .conftest import Bench

NONE = ErrorCode.NONE


@pytest.fixture
def topic(bench: Bench) -> Bench:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3))
    return bench


def values(bench: Bench, resource_type: str = "topic", name: str = "t") -> dict[str, str]:
    return dict(bench.controller.committed.config(resource_type, name))


def test_set_and_delete(topic: Bench) -> None:
    assert topic.set("topic", "t", "retention.ms", "5").error is NONE
    assert values(topic) == {"retention.ms": "5"}
    offset = topic.offset
    topic.set("topic", "t", "retention.ms", "5")
    assert topic.offset == offset, "what holds already was written again"
    topic.set("topic", "t", "retention.ms", None, "delete")
    assert values(topic) == {}
    assert topic.set("topic", "t", "retention.ms", None, "delete").error is NONE


def test_append_and_subtract(topic: Bench) -> None:
    topic.set("topic", "t", "cleanup.policy", "compact", "append")
    assert values(topic) == {"cleanup.policy": "delete,compact"}
    topic.set("topic", "t", "cleanup.policy", "compact", "append")
    assert values(topic) == {"cleanup.policy": "delete,compact"}
    topic.set("topic", "t", "cleanup.policy", "delete", "subtract")
    assert values(topic) == {"cleanup.policy": "compact"}
    assert topic.set("topic", "t", "cleanup.policy", "compact", "subtract").error is NONE
    assert values(topic) == {"cleanup.policy": ""}, "neither: everything is kept"
    topic.set("topic", "t", "cleanup.policy", "delete", "append")
    assert values(topic) == {"cleanup.policy": "delete"}


def test_replaced_as_a_whole(topic: Bench) -> None:
    topic.set("topic", "t", "retention.ms", "5")
    topic.set("topic", "t", "retention.bytes", "6")

    def replace(*changes: ConfigChange) -> ErrorCode:
        altered = AlterResource(ConfigResource("topic", "t"), changes, replace=True)
        code: ErrorCode = topic.ask(IncrementalAlterConfigsRequest((altered,))).resources[0].error
        return code

    assert replace(ConfigChange("retention.bytes", "set", "x")) is ErrorCode.INVALID_CONFIG
    assert values(topic) == {"retention.ms": "5", "retention.bytes": "6"}
    assert replace(ConfigChange("retention.bytes", "set", "7"), ConfigChange("flush.ms", "set", "8")) is NONE
    assert values(topic) == {"retention.bytes": "7", "flush.ms": "8"}
    assert replace() is NONE
    assert values(topic) == {}


@pytest.mark.parametrize(
    ("resource", "setting", "value", "operation", "error", "text"),
    [
        (("topic", "no"), "retention.ms", "5", "set", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "found 'no'"),
        (("topic", "n o"), "retention.ms", "5", "set", ErrorCode.INVALID_TOPIC_EXCEPTION, "found 'n o'"),
        (("group", "g"), "consumer.session.timeout.ms", "1", "set", ErrorCode.INVALID_CONFIG, "expected 45000 to"),
        (("group", ""), "consumer.session.timeout.ms", "50000", "set", ErrorCode.INVALID_REQUEST, "1 to 1024 bytes"),
        (("client metrics", "m"), "match", "a", "set", ErrorCode.INVALID_CONFIG, "ATTRIBUTE=REGEX"),
        (("colour", "g"), "x", "5", "set", ErrorCode.INVALID_REQUEST, "client metrics or group, found 'colour'"),
        (("broker", "x"), "log.retention.ms", "5", "set", ErrorCode.INVALID_REQUEST, "a broker's id"),
        (("broker", "9"), "log.retention.ms", "5", "set", ErrorCode.BROKER_ID_NOT_REGISTERED, "found 9"),
        (("broker", ""), "node.id", "5", "set", ErrorCode.INVALID_REQUEST, "node.id: expected a setting that can"),
        (("broker", ""), "log.retention.m", "5", "set", ErrorCode.INVALID_CONFIG, "did you mean log.retention.ms?"),
        (("topic", "t"), "retention.ms", None, "set", ErrorCode.INVALID_REQUEST, "expected a value to set"),
        (("topic", "t"), "retention.ms", "1", "append", ErrorCode.INVALID_CONFIG, "expected a list for append"),
        (("topic", "t"), "cleanup.policy", None, "append", ErrorCode.INVALID_REQUEST, "expected a value to append"),
        (("topic", "t"), "cleanup.policy", "burn", "append", ErrorCode.INVALID_CONFIG, "found 'burn'"),
        (("topic", "t"), "retention.ms", "1", "burn", ErrorCode.INVALID_REQUEST, "subtract, found 'burn'"),
        (
            ("topic", "t"),
            "segment.bytes",
            "1",
            "set",
            ErrorCode.INVALID_CONFIG,
            "segment.bytes: expected a whole number",
        ),
        (("topic", "t"), "min.insync.replicas", "4", "set", ErrorCode.INVALID_CONFIG, "the replication factor of 't'"),
    ],
)
def test_refused(
    topic: Bench,
    resource: tuple[str, str],
    setting: str,
    value: str | None,
    operation: str,
    error: ErrorCode,
    text: str,
) -> None:
    offset = topic.offset
    result = topic.set(*resource, setting, value, operation)
    assert result.error is error
    assert text in result.error_message
    assert topic.offset == offset


def test_a_resource_changes_as_a_whole(topic: Bench) -> None:
    good, bad = ConfigChange("retention.ms", "set", "5"), ConfigChange("retention.bytes", "set", "x")
    resource = ConfigResource("topic", "t")
    request = IncrementalAlterConfigsRequest((AlterResource(resource, (good, bad)),))
    assert topic.ask(request).resources[0].error is ErrorCode.INVALID_CONFIG
    request = IncrementalAlterConfigsRequest((AlterResource(resource, (good,)), AlterResource(resource, (good,))))
    assert [found.error for found in topic.ask(request).resources] == [ErrorCode.INVALID_REQUEST] * 2
    twice = IncrementalAlterConfigsRequest((AlterResource(resource, (good, good)),))
    assert topic.ask(twice).resources[0].error is ErrorCode.INVALID_REQUEST
    assert values(topic) == {}


def test_kafkas_tools_take_back_what_nobody_has_set(topic: Bench) -> None:
    """``kafka-reassign-partitions.sh --verify`` clears a throttle between a broker's own directories too."""
    name = "replica.alter.log.dirs.io.max.bytes.per.second"
    assert topic.set("broker", "1", name, None, "delete").error is NONE
    assert topic.set("broker", "1", name, "5").error is NONE
    assert topic.set("broker", "1", name, None, "delete").error is NONE
    assert topic.set("broker", "1", "replica.alter.log.dirs.oi.max", None, "delete").error is ErrorCode.INVALID_CONFIG


def test_validate_only_changes_nothing(topic: Bench) -> None:
    change = AlterResource(ConfigResource("topic", "t"), (ConfigChange("retention.ms", "set", "5"),))
    assert topic.ask(IncrementalAlterConfigsRequest((change,), validate_only=True)).resources[0].error is NONE
    assert values(topic) == {}


def test_dynamic_default_of_all_brokers_counts_as_min_isr(topic: Bench) -> None:
    topic.set("broker", "", "min.insync.replicas", "2")
    topic.alter_isr("t", (1,))
    assert topic.partition("t").eligible_leader_replicas == (2, 3)


def test_lower_min_isr_ends_an_elr_before_a_leader_hears_of_it(topic: Bench) -> None:
    """Else the high watermark could rise without the ELR's members, who could lead nevertheless (KIP-966)."""
    topic.set("topic", "t", "min.insync.replicas", "2")
    topic.alter_isr("t", (1,))
    assert topic.partition("t").eligible_leader_replicas == (2, 3)
    topic.set("topic", "t", "min.insync.replicas", "1")
    assert topic.partition("t").eligible_leader_replicas == ()
    topic.silence(1)
    assert topic.partition("t").leader == -1


def test_lower_min_isr_of_all_brokers_ends_every_elr(topic: Bench) -> None:
    topic.set("broker", "", "min.insync.replicas", "2")
    topic.alter_isr("t", (1,))
    topic.set("broker", "", "min.insync.replicas", None, "delete")
    assert topic.partition("t").eligible_leader_replicas == ()


def test_allowing_unclean_elections_elects_at_once(topic: Bench) -> None:
    topic.alter_isr("t", (1,))
    topic.silence(1)
    assert topic.partition("t").leader == -1
    topic.set("topic", "t", "unclean.leader.election.enable", "true")
    assert topic.partition("t").leader == 2
    assert topic.partition("t").leader_recovery


def test_settings_of_one_broker(topic: Bench) -> None:
    assert topic.set("broker", "2", "log.retention.ms", "9").error is NONE
    assert values(topic, "broker", "2") == {"log.retention.ms": "9"}


# --- Features ---


def features(bench: Bench, *levels: tuple[str, int], validate_only: bool = False) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(tuple(FeatureUpdate(*found) for found in levels), validate_only)
    return bench.ask(request)


def test_new_cluster_has_the_highest_levels(bench: Bench) -> None:
    assert dict(bench.controller.committed.features) == {
        "group.version": 1,
        "metadata.version": 2,
        "transaction.version": 2,
    }


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (("metadata.version", 3), "metadata.version: expected a level of 1 to 2, found 3"),
        (("metadata.version", 0), "found 0"),
        (("group.version", 2), "group.version: expected a level of 0 to 1, found 2"),
        (("metadata.revision", 1), "expected one of group.version, metadata.version, transaction.version, found 'me"),
    ],
)
def test_bad_levels(bench: Bench, level: tuple[str, int], text: str) -> None:
    response = features(bench, level)
    assert response.error is ErrorCode.INVALID_UPDATE_VERSION
    assert text in response.error_message


def test_level_in_use_again(bench: Bench) -> None:
    assert features(bench, ("metadata.version", 2)).error is NONE


# --- Producer ids ---


def test_blocks_of_producer_ids_never_overlap(bench: Bench) -> None:
    bench.up(1, 2)

    def block(node: int) -> AllocateProducerIdsResponse:
        return bench.ask(AllocateProducerIdsRequest(NodeId(node), bench.epochs[node]))

    found = [block(node) for node in (1, 2, 1)]
    assert [(answer.first_producer_id, answer.count) for answer in found] == [(0, 1000), (1000, 1000), (2000, 1000)]
    stale = bench.ask(AllocateProducerIdsRequest(NodeId(1), BrokerEpoch(99)))
    assert stale.error is ErrorCode.STALE_BROKER_EPOCH


def test_producer_ids_of_a_restore_that_failed_are_given_back_unless_somebody_got_some_meanwhile(bench: Bench) -> None:
    bench.up(1)
    taken = bench.ask(AdvanceProducerIdsRequest(ProducerId(5_000)))
    assert (taken.former_producer_id, taken.next_producer_id) == (0, 6_000)
    back = AdvanceProducerIdsRequest(taken.next_producer_id, taken.former_producer_id)
    assert bench.ask(back).error is ErrorCode.NONE
    assert bench.controller.committed.next_producer_id == 0
    taken = bench.ask(AdvanceProducerIdsRequest(ProducerId(5_000)))
    bench.ask(AllocateProducerIdsRequest(NodeId(1), bench.epochs[1]))
    assert bench.ask(back).error is ErrorCode.INVALID_REQUEST
    assert bench.controller.committed.next_producer_id == 7_000


def test_producer_ids_run_out(bench: Bench) -> None:
    bench.up(1)
    bench.take((ProducerIdsRecord(NodeId(1), BrokerEpoch(1), ProducerId(2**63 - 1000)),))
    response = bench.ask(AllocateProducerIdsRequest(NodeId(1), bench.epochs[1]))
    assert response.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert bench.controller.committed.next_producer_id == 2**63 - 1000


# --- Preferred leaders ---


def leaders(bench: Bench, name: str, count: int) -> list[int]:
    return [bench.partition(name, number).leader for number in range(count)]


def test_balance_gives_partitions_back(bench: Bench) -> None:
    bench.up(1, 2)
    bench.create("t", (1, 2), (1, 2), (2, 1))
    bench.silence(1)
    bench.beat(1)
    assert leaders(bench, "t", 3) == [2, 2, 2]
    bench.take(bench.controller.balance())
    assert leaders(bench, "t", 3) == [2, 2, 2], "a replica outside the ISR was made leader"
    for number in range(3):
        bench.alter_isr("t", (2, 1), number=number)
    bench.take(bench.controller.balance())
    assert leaders(bench, "t", 3) == [1, 1, 2]
    assert bench.controller.balance() == []


def test_balance_bears_a_few() -> None:
    """Ten of a hundred led by another are within 10 per cent, eleven are not."""
    bench = Bench()
    bench.up(1, 2)
    bench.create("t", *[(1, 2)] * 100)
    for moved in range(11):
        partition = bench.partition("t", moved)
        from tidelog.proto.logs.metadata_records import PartitionChangeRecord

        bench.take((PartitionChangeRecord(partition.topic_id, moved, leader=NodeId(2)),))
        expected = 0 if moved < 10 else 11
        assert len(bench.controller.balance()) == expected


def test_ids_that_restored_records_bear_are_never_given_out(bench: Bench) -> None:
    bench.up(1)

    def block() -> AllocateProducerIdsResponse:
        return bench.ask(AllocateProducerIdsRequest(NodeId(1), bench.epochs[1]))

    def advance(beyond: int) -> AdvanceProducerIdsResponse:
        return bench.ask(AdvanceProducerIdsRequest(ProducerId(beyond)))

    assert advance(5_500).first_producer_id == 5_500
    assert block().first_producer_id == 6_500
    again = advance(5_500)
    assert (again.error, again.first_producer_id) == (ErrorCode.NONE, 7_500), "a repeated restore goes on"
    assert advance(-1).first_producer_id == 8_500
    refused = advance(1_000_000)
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert "restore into a new cluster" in refused.error_message
    assert block().first_producer_id == 9_500, "a refusal changes nothing"
