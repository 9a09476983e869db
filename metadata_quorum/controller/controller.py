"""The controller: every decision about the cluster, as a state machine without IO.

It holds two images. The *committed* one is the state of the committed metadata log. The *draft*, on the active
controller only, adds all appended records, so that each request is decided on top of all earlier ones. Answers wait
until the records they depend on are committed. If an append fails or leadership is lost, the draft is dropped; nothing
is ever rolled back.

====================  ========================================  =====================================
state                 event                                     what happens
====================  ========================================  =====================================
standby               entry committed                           committed image advances
standby               leading under an epoch                    active: draft = committed image; fresh
                                                                sessions; clean-up records
active                request                                   decision on the draft
active                records appended                          draft advances
active                entry committed                           committed image advances; equal again
                                                                when nothing is pending
active                append failed, or resigned                standby: draft and sessions dropped
any                   snapshot                                  committed image replaced
====================  ========================================  =====================================

Source: Kafka's ``QuorumController``.
"""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from tidelog.metadata_quorum.controller.acl_changes import create_acls, delete_acls
from tidelog.metadata_quorum.controller.broker_changes import BrokerChanges
from tidelog.metadata_quorum.controller.broker_liveness import BrokerLiveness
from tidelog.metadata_quorum.controller.config_changes import alter_configs
from tidelog.metadata_quorum.controller.decision import Decision, stale_epoch
from tidelog.metadata_quorum.controller.features import (
    ControllerRegistrations,
    bootstrap_features,
    gate_fault,
)
from tidelog.metadata_quorum.controller.isr_changes import alter_partition, assign_directories
from tidelog.metadata_quorum.controller.leader_elections import elect_leaders
from tidelog.metadata_quorum.controller.mutation_quotas import MutationQuotas
from tidelog.metadata_quorum.controller.quota_changes import alter_client_quotas
from tidelog.metadata_quorum.controller.reassignment import alter_reassignments, list_reassignments
from tidelog.metadata_quorum.controller.rebalance import leaderless_elections, preferred_elections, unpublished_topics
from tidelog.metadata_quorum.controller.refusals import refuse
from tidelog.metadata_quorum.controller.scram_changes import SECRET_BYTES, alter_users
from tidelog.metadata_quorum.controller.token_changes import TokenChanges
from tidelog.metadata_quorum.controller.topic_changes import TopicChanges
from tidelog.metadata_quorum.controller.unclean_recovery import UncleanRecovery
from tidelog.metadata_quorum.image.change import MetadataDelta, apply_records, difference
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import UNKNOWN_POSITION, MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, ControllerEpoch, NodeId, Offset, ProducerId
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.proto.calls.acl_api import CreateAclsRequest, DeleteAclsRequest
from tidelog.proto.calls.api import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from tidelog.proto.calls.backup_api import AdvanceProducerIdsRequest, AdvanceProducerIdsResponse
from tidelog.proto.calls.controller_api import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RegisterControllerRequest,
    ReportLogEndsRequest,
)
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tidelog.proto.calls.quota_api import AlterClientQuotasRequest
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.user_api import AlterUserScramCredentialsRequest
from tidelog.proto.logs.metadata_records import MetadataRecord, PartitionChangeRecord, ProducerIdsRecord

PRODUCER_IDS_PER_BLOCK: Final = 1_000
"""KIP-730's ``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``."""

_Decide = Callable[[Any, int], Decision[Any]]


class Controller:
    """One controller's state. ``rng`` draws ids and places replicas. Times are monotonic milliseconds.

    ``voters``: the current voters by the metadata log. ``wall_ms``: milliseconds since 1970, for public expiry times.
    """

    def __init__(
        self,
        config: NodeConfig,
        cluster_id: str,
        rng: random.Random,
        voters: Callable[[], Collection[NodeId]],
        wall_ms: Callable[[], int],
        first_records: Sequence[MetadataRecord] = (),
        *,
        up_to_date: Callable[[], Collection[NodeId]] | None = None,
    ) -> None:
        """``first_records``: a new cluster's first records, besides its features. ``up_to_date``: the connected
        controllers with a release later than 0.1; by default those that vote."""
        self._first_records = first_records
        self._config = config
        self.configs: Final = ConfigView(config)
        self.committed = MetadataImage()
        self.unclean_elections = 0
        """Unclean elections committed while this controller was active."""
        self._draft: MetadataImage | None = None
        self._appended: deque[tuple[MetadataRecord, ...]] = deque()
        """Entries that the draft still lacks."""
        self._epoch = ControllerEpoch(-1)
        self.liveness: Final = BrokerLiveness(config.broker_session_timeout_ms, config.broker_heartbeat_interval_ms)
        self._brokers = BrokerChanges(config, cluster_id, self.configs)
        self._mutations = MutationQuotas(config)
        self._topics = TopicChanges(config, self.configs, rng, self._mutations)
        self._wall_ms = wall_ms
        self._tokens = TokenChanges(config, rng)
        self._controllers = ControllerRegistrations(cluster_id, voters, up_to_date or voters)
        self._recovery = UncleanRecovery(self.configs, config.unclean_recovery_timeout_ms)
        self._deciders: dict[type[Any], _Decide] = {
            RegisterBrokerRequest: self._register,
            BrokerHeartbeatRequest: self._heartbeat,
            CreateTopicsRequest: lambda request, now_ms: self._topics.create(self.draft, request, now_ms),
            DeleteTopicsRequest: lambda request, now_ms: self._topics.delete(self.draft, request, now_ms),
            CreatePartitionsRequest: lambda request, now_ms: self._topics.grow(self.draft, request, now_ms),
            IncrementalAlterConfigsRequest: lambda request, _: alter_configs(self.draft, self.configs, request),
            AlterPartitionReassignmentsRequest: lambda request, _: alter_reassignments(
                self.draft, self.configs, request
            ),
            ListPartitionReassignmentsRequest: lambda request, _: list_reassignments(self.draft, request),
            ElectLeadersRequest: lambda request, _: elect_leaders(self.draft, self.configs, request),
            UpdateFeaturesRequest: lambda request, _: self._controllers.update_features(self.draft, request),
            UnregisterBrokerRequest: lambda request, _: self._brokers.unregister(self.draft, request),
            CreateAclsRequest: lambda request, _: create_acls(self.draft, request),
            DeleteAclsRequest: lambda request, _: delete_acls(self.draft, request),
            AlterClientQuotasRequest: lambda request, _: alter_client_quotas(self.draft, request),
            AlterUserScramCredentialsRequest: lambda request, _: alter_users(
                self.draft, request, lambda: secrets.token_bytes(SECRET_BYTES)
            ),
            CreateDelegationTokenRequest: lambda request, _: self._tokens.create(self.draft, request, wall_ms()),
            RenewDelegationTokenRequest: lambda request, _: self._tokens.renew(self.draft, request, wall_ms()),
            ExpireDelegationTokenRequest: lambda request, _: self._tokens.expire(self.draft, request, wall_ms()),
            RegisterControllerRequest: lambda request, _: self._controllers.register(self.draft, request),
            AlterPartitionRequest: lambda request, _: alter_partition(self.draft, self.configs, request),
            AssignReplicasToDirsRequest: lambda request, _: assign_directories(self.draft, self.configs, request),
            ReportLogEndsRequest: lambda request, now_ms: self._recovery.report(self.draft, request, now_ms),
            AllocateProducerIdsRequest: lambda request, _: self._allocate_producer_ids(request),
            AdvanceProducerIdsRequest: lambda request, _: self._advance_producer_ids(request),
        }

    # --- What the quorum says ---

    @property
    def active(self) -> bool:
        return self._draft is not None

    @property
    def epoch(self) -> ControllerEpoch:
        """The epoch under which this controller is active, -1 if it is not."""
        return self._epoch

    @property
    def draft(self) -> MetadataImage:
        """The image with all appended records. Only while active."""
        while self._appended:
            self.catch_up()
        assert self._draft is not None, "a controller that is not active has no draft"
        return self._draft

    def load(self, image: MetadataImage) -> MetadataDelta:
        """Replace the committed image after the quorum loaded a snapshot. An active controller becomes inactive."""
        self.resign()
        delta = difference(self.committed, image)
        self.committed = image
        return delta

    def commit(
        self, records: tuple[MetadataRecord, ...], offset: Offset, epoch: ControllerEpoch, *, settled: bool = False
    ) -> MetadataDelta:
        """Apply a committed entry. ``settled``: no appended entry is still pending."""
        self.committed, delta = apply_records(self.committed, records, offset, epoch)
        if self.active:
            self.unclean_elections += sum(
                isinstance(record, PartitionChangeRecord) and record.leader_recovery is True for record in records
            )
        if settled and self._draft is not None:
            self._draft = self.committed
            self._appended.clear()
        return delta

    def lead(self, epoch: ControllerEpoch, now_ms: int) -> list[MetadataRecord]:
        """Become active. Every broker gets a fresh session. Returns the records to append first: the levels of a new
        cluster's features, and the rest of changes that a previous controller left half done."""
        self._draft = self.committed
        self._appended.clear()
        self._epoch = epoch
        brokers = self.committed.brokers
        self.liveness.reset(
            (node for node, found in brokers.items() if not found.fenced),
            (node for node, found in brokers.items() if found.fenced),
            now_ms,
        )
        self._recovery.reset()
        self._mutations.reset()
        self._controllers.reset()
        return [
            *self._bootstrap(),
            *unpublished_topics(self.committed),
            *leaderless_elections(self.committed, self.configs),
        ]

    def _bootstrap(self) -> list[MetadataRecord]:
        features = bootstrap_features(self.committed)
        return [*features, *self._first_records] if features else []

    def resign(self) -> None:
        """Become a standby. May be called twice."""
        self._draft = None
        self._appended.clear()
        self._epoch = ControllerEpoch(-1)
        self._recovery.reset()

    def append(self, records: tuple[MetadataRecord, ...]) -> None:
        """Add an entry, which is on its way to the log, to the draft: no later than the next decision."""
        assert self._draft is not None, "a controller that is not active has no draft"
        self._appended.append(records)

    def catch_up(self) -> None:
        """Apply one entry that the draft still lacks."""
        if self._draft is not None and self._appended:
            self._draft, _ = apply_records(self._draft, self._appended.popleft(), UNKNOWN_POSITION, self._epoch)

    # --- Decisions; only while active ---

    @property
    def requests(self) -> frozenset[type[Request[Any]]]:
        """The requests that :meth:`decide` accepts."""
        return frozenset(self._deciders)

    def decide(self, request: Request[Any], now_ms: int) -> Decision[Any]:
        """Decide about a request. Before the next call, append its records and call :meth:`heard`; otherwise the
        decision is dropped without effect. Records that the current level does not allow are refused with
        UNSUPPORTED_VERSION."""
        decision = self._deciders[type(request)](request, now_ms)
        fault = gate_fault(self.draft, decision.records)
        if fault is None:
            return decision
        return Decision((), refuse(request, ErrorCode.UNSUPPORTED_VERSION, fault))

    def heard(self, request: Request[Any], now_ms: int) -> None:
        """Note that a request was decided and its records are appended: if it came from a broker with the right epoch,
        that broker is alive."""
        if not isinstance(request, (BrokerHeartbeatRequest, RegisterBrokerRequest, UnregisterBrokerRequest)):
            return
        found = self.draft.broker(request.node_id)
        if found is None:
            self.liveness.remove(request.node_id)
            return
        if isinstance(request, UnregisterBrokerRequest):
            return
        if isinstance(request, RegisterBrokerRequest):
            if found.record.incarnation_id == request.incarnation_id:
                self.liveness.register(request.node_id, found.fenced, now_ms)
        elif found.broker_epoch == request.broker_epoch:
            offset, committed = request.current_metadata_offset, self.committed.offset
            self.liveness.touch(request.node_id, found.fenced, offset, committed, now_ms)

    def fence_silent(self, now_ms: int) -> list[MetadataRecord]:
        """Fence the brokers with ended sessions, all in one decision, so that none of them inherits another's
        leaderships."""
        silent: list[NodeId] = []
        for node_id in self.liveness.expired(now_ms):
            self.liveness.fence(node_id)
            found = self.draft.broker(node_id)
            if found is not None and not found.fenced:
                silent.append(node_id)
        return self._brokers.fence(self.draft, silent) if silent else []

    def recover(self, now_ms: int) -> list[MetadataRecord]:
        """Elect leaders by the reported logs, for partitions that need not wait for more reports."""
        return self._recovery.elect(self.draft, now_ms)

    def balance(self) -> list[MetadataRecord]:
        """Elect preferred leaders for brokers that lead too few partitions."""
        percentage = self._config.leader_imbalance_per_broker_percentage
        return preferred_elections(self.draft, self.configs, percentage)

    def sweep_tokens(self) -> Sequence[MetadataRecord]:
        """Remove expired delegation tokens."""
        return self._tokens.sweep(self.draft, self._wall_ms())

    def shutdown_committed(self, node_id: NodeId, offset: Offset) -> None:
        """Note that the change for a broker in controlled shutdown was committed at ``offset``."""
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

    def _advance_producer_ids(self, request: AdvanceProducerIdsRequest) -> Decision[AdvanceProducerIdsResponse]:
        """Retire a block, and all ids below ``beyond`` unless some of them are in use; or undo that."""
        known = self.draft.next_producer_id
        if request.give_back is not None:
            return self._give_back_producer_ids(request.give_back, request.beyond)
        if 0 < known < request.beyond:
            text = (
                f"expected a cluster that has given out no producer id below {request.beyond} yet, found that it has "
                f"given out those up to {known}: restore into a new cluster"
            )
            return Decision((), AdvanceProducerIdsResponse(ErrorCode.INVALID_REQUEST, error_message=text))
        first = max(known, request.beyond)
        if first > LONG_MAX - PRODUCER_IDS_PER_BLOCK:
            return Decision((), AdvanceProducerIdsResponse(ErrorCode.INVALID_REQUEST, error_message="no ids are left"))
        beyond = ProducerId(first + PRODUCER_IDS_PER_BLOCK)
        record = ProducerIdsRecord(NO_NODE, self.draft.broker_epoch_highest, beyond)
        response = AdvanceProducerIdsResponse(
            ErrorCode.NONE, ProducerId(first), next_producer_id=beyond, former_producer_id=known
        )
        return Decision((record,), response)

    def _give_back_producer_ids(self, first: ProducerId, beyond: ProducerId) -> Decision[AdvanceProducerIdsResponse]:
        known = self.draft.next_producer_id
        if not 0 <= first <= known == beyond:
            text = f"expected ids up to {known}, the next one, to give back, found {first} to {beyond}"
            return Decision((), AdvanceProducerIdsResponse(ErrorCode.INVALID_REQUEST, error_message=text))
        record = ProducerIdsRecord(NO_NODE, self.draft.broker_epoch_highest, first)
        return Decision((record,), AdvanceProducerIdsResponse(ErrorCode.NONE, next_producer_id=first))
