"""The controller: every decision about the cluster, as a state machine without IO.

It holds two images. The *committed* one is what the metadata log says for certain. The *draft*, on the
active controller only, has everything appended on top of it, so that each request is judged against all
those before it. Answers wait until the records they rest on are committed. When an append fails or
leadership is lost, the draft is dropped; nothing is ever rolled back.

====================  ========================================  =====================================
state                 event                                     what happens
====================  ========================================  =====================================
standby               entry committed                           committed image advances
standby               leading under an epoch                    active: draft = committed image; fresh
                                                                sessions; clearing-up records
active                request                                   decision on the draft
active                records appended                          draft advances
active                entry committed                           committed image advances; equal again
                                                                when nothing is under way
active                append failed, or resigned                standby: draft and sessions dropped
any                   snapshot                                  committed image replaced
====================  ========================================  =====================================

Source: Kafka's ``QuorumController``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from tidelog.metadata_quorum.broker_changes import BrokerChanges
from tidelog.metadata_quorum.broker_liveness import BrokerLiveness
from tidelog.metadata_quorum.config_changes import alter_configs
from tidelog.metadata_quorum.config_view import ConfigView
from tidelog.metadata_quorum.decision import Decision, stale_epoch
from tidelog.metadata_quorum.features import bootstrap_features, update_features
from tidelog.metadata_quorum.image import UNKNOWN_POSITION, MetadataImage
from tidelog.metadata_quorum.image_change import MetadataDelta, apply_records, difference
from tidelog.metadata_quorum.isr_changes import alter_partition, assign_directories
from tidelog.metadata_quorum.leader_elections import elect_leaders
from tidelog.metadata_quorum.reassignment import alter_reassignments, list_reassignments
from tidelog.metadata_quorum.rebalance import leaderless_elections, preferred_elections, unpublished_topics
from tidelog.metadata_quorum.topic_changes import TopicChanges
from tidelog.metadata_quorum.unclean_recovery import UncleanRecovery
from tidelog.model.broker_config import NodeConfig
from tidelog.model.config_def import LONG_MAX
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ControllerEpoch, NodeId, Offset, ProducerId
from tidelog.proto.api import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    UpdateFeaturesRequest,
)
from tidelog.proto.controller_api import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ReportLogEndsRequest,
)
from tidelog.proto.metadata import MetadataRecord, ProducerIdsRecord
from tidelog.proto.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tidelog.proto.request import Request

PRODUCER_IDS_PER_BLOCK: Final = 1_000
"""KIP-730's ``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``."""

_Decide = Callable[[Any, int], Decision[Any]]


class Controller:
    """One controller's state. ``rng`` makes topic ids and places replicas. Times are monotonic milliseconds."""

    def __init__(self, config: NodeConfig, cluster_id: str, rng: random.Random) -> None:
        self._config = config
        self.configs: Final = ConfigView(config)
        self.committed = MetadataImage()
        self._draft: MetadataImage | None = None
        self._epoch = ControllerEpoch(-1)
        self.liveness: Final = BrokerLiveness(config.broker_session_timeout_ms, config.broker_heartbeat_interval_ms)
        self._brokers = BrokerChanges(config, cluster_id, self.configs)
        self._topics = TopicChanges(config, self.configs, rng)
        self._recovery = UncleanRecovery(self.configs, config.unclean_recovery_timeout_ms)
        self._deciders: dict[type[Any], _Decide] = {
            RegisterBrokerRequest: self._register,
            BrokerHeartbeatRequest: self._heartbeat,
            CreateTopicsRequest: lambda request, _: self._topics.create(self.draft, request),
            DeleteTopicsRequest: lambda request, _: self._topics.delete(self.draft, request),
            CreatePartitionsRequest: lambda request, _: self._topics.grow(self.draft, request),
            IncrementalAlterConfigsRequest: lambda request, _: alter_configs(self.draft, self.configs, request),
            AlterPartitionReassignmentsRequest: lambda request, _: alter_reassignments(
                self.draft, self.configs, request
            ),
            ListPartitionReassignmentsRequest: lambda request, _: list_reassignments(self.draft, request),
            ElectLeadersRequest: lambda request, _: elect_leaders(self.draft, self.configs, request),
            UpdateFeaturesRequest: lambda request, _: update_features(self.draft, request),
            AlterPartitionRequest: lambda request, _: alter_partition(self.draft, self.configs, request),
            AssignReplicasToDirsRequest: lambda request, _: assign_directories(self.draft, self.configs, request),
            ReportLogEndsRequest: lambda request, now_ms: self._recovery.report(self.draft, request, now_ms),
            AllocateProducerIdsRequest: lambda request, _: self._allocate_producer_ids(request),
        }

    # --- What the quorum says ---

    @property
    def active(self) -> bool:
        return self._draft is not None

    @property
    def epoch(self) -> ControllerEpoch:
        """The epoch this controller is active under, -1 when it is not."""
        return self._epoch

    @property
    def draft(self) -> MetadataImage:
        """The image with everything appended. Only while active."""
        assert self._draft is not None, "a controller that is not active has no draft"
        return self._draft

    def load(self, image: MetadataImage) -> MetadataDelta:
        """Replace the committed image: the quorum loaded a snapshot. A controller that was active is not any more."""
        self.resign()
        delta = difference(self.committed, image)
        self.committed = image
        return delta

    def commit(
        self, records: tuple[MetadataRecord, ...], offset: Offset, epoch: ControllerEpoch, *, settled: bool = False
    ) -> MetadataDelta:
        """Apply a committed entry. ``settled``: nothing appended is still under way."""
        self.committed, delta = apply_records(self.committed, records, offset, epoch)
        if settled and self._draft is not None:
            self._draft = self.committed
        return delta

    def lead(self, epoch: ControllerEpoch, now_ms: int) -> list[MetadataRecord]:
        """Become active. Every broker gets a fresh session. Returns what is to be appended first: the levels
        of a new cluster's features, and the end of what a former controller left half done."""
        self._draft = self.committed
        self._epoch = epoch
        brokers = self.committed.brokers
        self.liveness.reset(
            (node for node, found in brokers.items() if not found.fenced),
            (node for node, found in brokers.items() if found.fenced),
            now_ms,
        )
        self._recovery.reset()
        return [
            *bootstrap_features(self.committed),
            *unpublished_topics(self.committed),
            *leaderless_elections(self.committed, self.configs),
        ]

    def resign(self) -> None:
        """Become a standby. May be called twice."""
        self._draft = None
        self._epoch = ControllerEpoch(-1)
        self._recovery.reset()

    def append(self, records: tuple[MetadataRecord, ...]) -> None:
        """Apply one entry to the draft: it is on its way to the log."""
        self._draft, _ = apply_records(self.draft, records, UNKNOWN_POSITION, self._epoch)

    # --- Decisions; only while active ---

    @property
    def requests(self) -> frozenset[type[Request[Any]]]:
        """The requests that :meth:`decide` takes."""
        return frozenset(self._deciders)

    def decide(self, request: Request[Any], now_ms: int) -> Decision[Any]:
        """Decide about a request. Its records are to be appended, and :meth:`heard` called, before the next
        call; or the decision is dropped, and nothing has happened."""
        return self._deciders[type(request)](request, now_ms)

    def heard(self, request: Request[Any], now_ms: int) -> None:
        """A request was decided about and its records are appended: if it came from a broker of the right
        epoch, that broker is alive."""
        if not isinstance(request, (BrokerHeartbeatRequest, RegisterBrokerRequest)):
            return
        found = self.draft.broker(request.node_id)
        if found is None:
            return
        if isinstance(request, RegisterBrokerRequest):
            if found.record.incarnation_id == request.incarnation_id:
                self.liveness.register(request.node_id, found.fenced, now_ms)
        elif found.broker_epoch == request.broker_epoch:
            self.liveness.touch(request.node_id, found.fenced, request.current_metadata_offset, now_ms)

    def fence_silent(self, now_ms: int) -> list[MetadataRecord]:
        """Fence the brokers whose sessions have ended, all in one decision: what one of them led goes to none of
        the others."""
        silent: list[NodeId] = []
        for node_id in self.liveness.expired(now_ms):
            self.liveness.fence(node_id)
            found = self.draft.broker(node_id)
            if found is not None and not found.fenced:
                silent.append(node_id)
        return self._brokers.fence(self.draft, silent) if silent else []

    def recover(self, now_ms: int) -> list[MetadataRecord]:
        """Elect leaders by the logs that were reported, where the rest is waited for no longer."""
        return self._recovery.elect(self.draft, now_ms)

    def balance(self) -> list[MetadataRecord]:
        """Elect preferred leaders where too few lead."""
        percentage = self._config.leader_imbalance_per_broker_percentage
        return preferred_elections(self.draft, self.configs, percentage)

    def shutdown_committed(self, node_id: NodeId, offset: Offset) -> None:
        """What a broker in controlled shutdown waits for was committed at ``offset``."""
        self.liveness.shuts_down_at(node_id, offset)

    # --- Each kind of request ---

    def _register(self, request: RegisterBrokerRequest, now_ms: int) -> Decision[RegisterBrokerResponse]:
        alive = self.liveness.has_valid_session(request.node_id, now_ms)
        return self._brokers.register(self.draft, request, has_valid_session=alive)

    def _heartbeat(self, request: BrokerHeartbeatRequest, now_ms: int) -> Decision[BrokerHeartbeatResponse]:
        known = self.committed.broker(request.node_id)
        is_committed = known is not None and known.broker_epoch == request.broker_epoch
        registered_at = known.registered_at if known is not None and is_committed else UNKNOWN_POSITION
        return self._brokers.heartbeat(self.draft, request, registered_at, self.liveness)

    def _allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> Decision[AllocateProducerIdsResponse]:
        stale = stale_epoch(self.draft, request.node_id, request.broker_epoch)
        if stale is not None:
            return Decision((), AllocateProducerIdsResponse(stale.code))
        first = self.draft.next_producer_id
        if first > LONG_MAX - PRODUCER_IDS_PER_BLOCK:
            return Decision((), AllocateProducerIdsResponse(ErrorCode.UNKNOWN_SERVER_ERROR))
        record = ProducerIdsRecord(request.node_id, request.broker_epoch, ProducerId(first + PRODUCER_IDS_PER_BLOCK))
        response = AllocateProducerIdsResponse(ErrorCode.NONE, first, PRODUCER_IDS_PER_BLOCK)
        return Decision((record,), response)
