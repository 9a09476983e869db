"""A controller whose log commits at once, and brokers that speak to it as calls."""

from __future__ import annotations

import random
from typing import Any, TypeVar

import pytest

from tidelog.metadata_quorum.controller.controller import Controller
from tidelog.metadata_quorum.controller.decision import entries
from tidelog.metadata_quorum.controller.features import supported_features
from tidelog.metadata_quorum.image.image import TopicImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, ControllerEpoch, DirectoryId, LeaderEpoch, NodeId, Offset, PartitionEpoch
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.api import (
    AlteredResource,
    AlterResource,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
    NewTopic,
    ReplicaAssignment,
)
from tidelog.proto.calls.controller_api import (
    AlteredPartition,
    AlterPartitionItem,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    Endpoint,
    IsrMember,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    PartitionReassignment,
    PartitionResult,
)
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.logs.metadata_codec import decode_batch, encode_batch
from tidelog.proto.logs.metadata_records import MetadataRecord, PartitionRecord

CLUSTER_ID = "the-cluster"
FEATURES = supported_features()


R = TypeVar("R", bound=Response)


class Bench:
    """Drives a :class:`Controller`; every entry goes through its bytes and commits before the next request."""

    def __init__(self, **settings: str) -> None:
        config = NodeConfig.parse({"node.id": "1"} | {name.replace("_", "."): text for name, text in settings.items()})
        self.voters = [config.node_id]
        self.in_touch: list[NodeId] | None = None
        """The controllers that are in touch and of a later release than 0.1; ``None``: those that vote."""
        self.controller = Controller(
            config,
            CLUSTER_ID,
            random.Random(7),
            lambda: self.voters,
            lambda: self.wall_ms,
            up_to_date=lambda: self.voters if self.in_touch is None else self.in_touch,
        )
        self.now_ms = 1_000
        self.wall_ms = 1_700_000_000_000
        self.offset = 1
        self.epochs: dict[int, BrokerEpoch] = {}
        self.incarnations = 0
        self.take(self.controller.lead(ControllerEpoch(1), self.now_ms))

    def take(self, records: list[MetadataRecord] | tuple[MetadataRecord, ...]) -> None:
        """Append and commit what was decided."""
        for entry in entries(records):
            self.controller.append(entry)
            self.offset += 1
            decoded = decode_batch(encode_batch(entry))
            self.controller.commit(decoded, Offset(self.offset), ControllerEpoch(1))
        draft, committed = self.controller.draft, self.controller.committed
        assert draft.at(committed.offset, committed.epoch) == committed
        self.controller.commit((), Offset(self.offset), ControllerEpoch(1), settled=True)

    def ask(self, request: Request[R]) -> R:
        decision = self.controller.decide(request, self.now_ms)
        self.take(decision.records)
        self.controller.heard(request, self.now_ms)
        response: R = decision.response
        return response

    # --- Brokers ---

    def register(
        self,
        node: int,
        *,
        rack: str | None = None,
        previous: int = -1,
        dirs: tuple[int, ...] | None = None,
        incarnation: bytes | None = None,
        cluster_id: str = CLUSTER_ID,
        listeners: tuple[Endpoint, ...] = (),
    ) -> RegisterBrokerResponse:
        self.incarnations += 1
        response: RegisterBrokerResponse = self.ask(
            RegisterBrokerRequest(
                cluster_id=cluster_id,
                node_id=NodeId(node),
                incarnation_id=incarnation or self.incarnations.to_bytes(16, "big"),
                listeners=listeners or (Endpoint("CLIENT", "127.0.0.1", 9000 + node),),
                rack=rack,
                log_dirs=tuple(directory(number) for number in (dirs or (100 + node,))),
                features=FEATURES,
                previous_broker_epoch=BrokerEpoch(previous),
            )
        )
        if response.error is ErrorCode.NONE:
            self.epochs[node] = response.broker_epoch
        return response

    def beat(
        self,
        node: int,
        *,
        epoch: int | None = None,
        offset: int | None = None,
        want_fence: bool = False,
        want_shut_down: bool = False,
        offline: tuple[int, ...] = (),
    ) -> BrokerHeartbeatResponse:
        response: BrokerHeartbeatResponse = self.ask(
            BrokerHeartbeatRequest(
                node_id=NodeId(node),
                broker_epoch=self.epochs.get(node, BrokerEpoch(-1)) if epoch is None else BrokerEpoch(epoch),
                current_metadata_offset=Offset(self.offset if offset is None else offset),
                want_fence=want_fence,
                want_shut_down=want_shut_down,
                offline_log_dirs=tuple(directory(number) for number in offline),
            )
        )
        return response

    def up(self, *nodes: int, **more: Any) -> None:
        """Register brokers and unfence them."""
        for node in nodes:
            assert self.register(node, **more).error is ErrorCode.NONE
            assert not self.beat(node).is_fenced

    def silence(self, *nodes: int) -> None:
        """Let the sessions of these brokers end, and nobody else's."""
        self.now_ms += 600
        for node, found in self.controller.draft.brokers.items():
            if node not in nodes and not found.fenced:
                self.beat(node)
        self.now_ms += 150
        while records := self.controller.fence_silent(self.now_ms):
            self.take(records)

    # --- Topics ---

    def create(
        self, name: str, *replicas: tuple[int, ...], partitions: int = -1, factor: int = -1, **settings: str
    ) -> CreatedTopic:
        """Create a topic, by assignments or by counts."""
        response = self.ask(
            CreateTopicsRequest(
                (
                    NewTopic(
                        name,
                        partitions,
                        factor,
                        tuple(
                            ReplicaAssignment(number, tuple(NodeId(node) for node in nodes))
                            for number, nodes in enumerate(replicas)
                        ),
                        tuple(ConfigEntry(key.replace("_", "."), value) for key, value in settings.items()),
                    ),
                )
            )
        )
        created: CreatedTopic = response.topics[0]
        return created

    def topic(self, name: str) -> TopicImage:
        topic = self.controller.committed.topic(name)
        assert topic is not None, f"expected a topic {name}"
        return topic

    def partition(self, name: str, number: int = 0) -> PartitionRecord:
        topic = self.controller.committed.topic(name)
        assert topic is not None
        return topic.partitions[number]

    def alter_isr(
        self,
        name: str,
        isr: tuple[int, ...],
        *,
        number: int = 0,
        sender: int | None = None,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        epochs: dict[int, int] | None = None,
    ) -> AlteredPartition:
        """Ask for another ISR as the leader would."""
        partition = self.partition(name, number)
        asking = partition.leader if sender is None else NodeId(sender)
        members = tuple(
            IsrMember(NodeId(node), BrokerEpoch((epochs or {}).get(node, self.epochs.get(node, -1)))) for node in isr
        )
        response = self.ask(
            AlterPartitionRequest(
                asking,
                self.epochs[asking],
                (
                    AlterPartitionItem(
                        partition.topic_id,
                        number,
                        partition.leader_epoch if leader_epoch is None else LeaderEpoch(leader_epoch),
                        members,
                        partition.partition_epoch if partition_epoch is None else PartitionEpoch(partition_epoch),
                    ),
                ),
            )
        )
        assert response.error is ErrorCode.NONE
        altered: AlteredPartition = response.partitions[0]
        return altered

    def move(self, name: str, replicas: tuple[int, ...] | None, *, number: int = 0, **more: Any) -> PartitionResult:
        """Wish for other replicas of one partition; ``None`` cancels."""
        wish = PartitionReassignment(
            name, number, tuple(NodeId(node) for node in replicas or ()), cancel=replicas is None
        )
        response = self.ask(AlterPartitionReassignmentsRequest((wish,), **more))
        assert response.error is ErrorCode.NONE
        result: PartitionResult = response.partitions[0]
        return result

    def set(
        self, resource_type: str, name: str, setting: str, value: str | None, operation: str = "set"
    ) -> AlteredResource:
        """Change one setting; returns the resource's result."""
        change = ConfigChange(setting, operation, value)
        request = IncrementalAlterConfigsRequest((AlterResource(ConfigResource(resource_type, name), (change,)),))
        return self.ask(request).resources[0]


def directory(number: int) -> DirectoryId:
    return DirectoryId(number.to_bytes(16, "big"))


@pytest.fixture
def bench() -> Bench:
    return Bench()
