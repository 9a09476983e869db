"""From images to replicas: what a change means for one broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.broker.metadata.reconciler import Reconciler, strays
from tidelog.metadata_quorum.image.change import apply_records, difference
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.clock import SystemClock
from tidelog.model.ids import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    ControllerEpoch,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
)
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.logs.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    NodeList,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from tidelog.replication.partition.partition_state import PartitionState

ME = NodeId(1)
A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)


def partition(topic: TopicId, number: int, replicas: Sequence[int], leader: int | None = None) -> PartitionRecord:
    nodes = tuple(NodeId(n) for n in replicas)
    return PartitionRecord(
        topic_id=topic,
        partition=number,
        replicas=nodes,
        isr=nodes,
        eligible_leader_replicas=(),
        last_known_elr=(),
        removing_replicas=(),
        adding_replicas=(),
        leader=nodes[0] if leader is None else NodeId(leader),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        leader_recovery=False,
        directories=(UNASSIGNED_DIRECTORY,) * len(nodes),
    )


class Replicas:
    """Records what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.states: dict[TopicIdPartition, PartitionState] = {}

    def apply(self, changes: Sequence[PartitionState]) -> None:
        for state in changes:
            self.told.append(("apply", (state.topic, state.partition, state.is_new)))
            self.states[state.key] = state

    def remove(self, partitions: Sequence[TopicIdPartition], delete: bool) -> None:
        for key in partitions:
            self.told.append(("remove", (key.topic_id, key.partition, delete)))
            self.states.pop(key, None)


class Broker:
    def __init__(self) -> None:
        self.replicas = Replicas()
        self.settings: list[Settings] = []
        self.image = MetadataImage()
        config = NodeConfig(node_id=ME)
        self.gone: set[DirectoryId] = set()
        self.reconciler = Reconciler(
            config,
            SystemClock(),
            self.replicas,
            self.settings.append,
            lambda _: None,
            lambda directory: directory in self.gone,
        )

    def commit(self, *records: MetadataRecord) -> list[tuple[str, object]]:
        self.replicas.told.clear()
        image, delta = apply_records(self.image, records, Offset(self.image.offset + 1), ControllerEpoch(1))
        self.image = image
        list(self.reconciler.on_metadata(image, delta))
        return list(self.replicas.told)

    def load(self, image: MetadataImage) -> list[tuple[str, object]]:
        self.replicas.told.clear()
        delta = difference(self.image, image)
        self.image = image
        list(self.reconciler.on_metadata(image, delta))
        return list(self.replicas.told)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_only_its_own_partitions_reach_a_broker(broker: Broker) -> None:
    told = broker.commit(partition(A, 0, [1, 2]), partition(A, 1, [2, 3]), partition(A, 2, [3, 1]), TopicRecord("a", A))
    assert told == [("apply", ("a", 0, True)), ("apply", ("a", 2, True))]


def test_a_change_touches_the_changed_partition_only(broker: Broker) -> None:
    broker.commit(partition(A, 0, [1, 2]), partition(A, 1, [1, 2]), TopicRecord("a", A))
    told = broker.commit(PartitionChangeRecord(A, 1, leader=NodeId(2)))
    assert told == [("apply", ("a", 1, False))]
    assert broker.replicas.states[TopicIdPartition(A, 1)].leader == 2


def test_a_replica_that_moved_away_is_removed(broker: Broker) -> None:
    broker.commit(partition(A, 0, [1, 2]), TopicRecord("a", A))
    image, _ = apply_records(broker.image, [RemoveTopicRecord(A)], Offset(9), ControllerEpoch(1))
    again, _ = apply_records(image, [partition(A, 0, [2, 3]), TopicRecord("a", A)], Offset(10), ControllerEpoch(1))
    assert broker.load(again) == [("remove", (A, 0, True))]


def test_a_topic_made_again_under_its_name_goes_first_and_comes_then(broker: Broker) -> None:
    broker.commit(partition(A, 0, [1]), TopicRecord("t", A))
    told = broker.commit(RemoveTopicRecord(A), partition(B, 0, [1]), TopicRecord("t", B))
    assert told == [("remove", (A, 0, True)), ("apply", ("t", 0, True))]
    assert broker.replicas.states.keys() == {TopicIdPartition(B, 0)}


def test_a_topics_setting_reaches_its_partitions_and_no_others(broker: Broker) -> None:
    broker.commit(partition(A, 0, [1]), TopicRecord("a", A), partition(B, 0, [1]), TopicRecord("b", B))
    told = broker.commit(ConfigRecord("topic", "a", "retention.ms", "1000"))
    assert told == [("apply", ("a", 0, False))]
    assert broker.replicas.states[TopicIdPartition(A, 0)].config.retention_ms == 1000
    assert broker.settings == []


@pytest.mark.parametrize("name", ["", "1"])
def test_a_brokers_setting_reaches_every_partition_that_has_none_of_its_own(broker: Broker, name: str) -> None:
    broker.commit(
        partition(A, 0, [1]),
        TopicRecord("a", A),
        partition(B, 0, [1]),
        TopicRecord("b", B),
        ConfigRecord("topic", "b", "retention.ms", "5"),
    )
    told = broker.commit(ConfigRecord("broker", name, "log.retention.ms", "777"))
    assert sorted(what for what, _ in told) == ["apply", "apply"]
    assert broker.replicas.states[TopicIdPartition(A, 0)].config.retention_ms == 777
    assert broker.replicas.states[TopicIdPartition(B, 0)].config.retention_ms == 5
    assert len(broker.settings) == 1


def test_another_brokers_setting_is_none_of_its_business(broker: Broker) -> None:
    broker.commit(partition(A, 0, [1]), TopicRecord("a", A))
    assert broker.commit(ConfigRecord("broker", "2", "log.retention.ms", "777")) == []


def test_a_stored_value_that_cannot_be_read_is_left_out_and_the_rest_holds(broker: Broker) -> None:
    broker.commit(
        partition(A, 0, [1]),
        TopicRecord("a", A),
        ConfigRecord("topic", "a", "retention.ms", "soon"),
        ConfigRecord("topic", "a", "flush.messages", "3"),
        ConfigRecord("broker", "", "message.max.bytes", "many"),
        ConfigRecord("broker", "", "log.retention.ms", "4000"),
    )
    config = broker.replicas.states[TopicIdPartition(A, 0)].config
    assert (config.retention_ms, config.flush_messages) == (4000, 3)
    assert any("message.max.bytes" in fault for fault in broker.settings[-1].faults)


def test_unchanged_topics_keep_one_configuration_object(broker: Broker) -> None:
    broker.commit(partition(A, 0, [1]), TopicRecord("a", A), ConfigRecord("topic", "a", "retention.ms", "5"))
    first = broker.replicas.states[TopicIdPartition(A, 0)].config
    broker.commit(PartitionChangeRecord(A, 0, isr=NodeList((ME,))))
    assert broker.replicas.states[TopicIdPartition(A, 0)].config is first


@pytest.mark.parametrize("old", [DirectoryId(b"o" * 16), LOST_DIRECTORY])
@pytest.mark.parametrize(
    ("leader", "isr", "elr", "last_known", "begins_anew"),
    [
        (2, (2, 3), (), (), True),
        (2, (1, 2), (), (), False),
        (2, (2,), (1,), (), False),
        (-1, (), (), (1,), False),
        # With a leader it does not matter: one is elected already.
        (2, (2,), (), (1,), True),
    ],
)
def test_only_a_replica_that_owes_nothing_begins_anew_on_another_disk(
    broker: Broker,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
    begins_anew: bool,
    old: DirectoryId,
) -> None:
    broker.gone.add(old)
    record = replace(
        partition(A, 0, [1, 2, 3], leader=leader),
        isr=tuple(NodeId(n) for n in isr),
        eligible_leader_replicas=tuple(NodeId(n) for n in elr),
        last_known_elr=tuple(NodeId(n) for n in last_known),
        directories=(old, UNASSIGNED_DIRECTORY, UNASSIGNED_DIRECTORY),
    )
    broker.commit(record, TopicRecord("a", A))
    place = broker.replicas.states[TopicIdPartition(A, 0)].directory_id
    assert place == (UNASSIGNED_DIRECTORY if begins_anew else old)


def test_strays_are_what_the_metadata_does_not_know_as_ours(broker: Broker) -> None:
    broker.commit(partition(A, 0, [1]), partition(A, 1, [2]), TopicRecord("a", A))
    held = [TopicIdPartition(A, 0), TopicIdPartition(A, 1), TopicIdPartition(B, 0)]
    assert strays(ME, broker.image, held) == [TopicIdPartition(A, 1), TopicIdPartition(B, 0)]
