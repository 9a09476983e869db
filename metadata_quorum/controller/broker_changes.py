"""The life of brokers: registration, heartbeats, fencing, shutdown, and failed directories.

Source: Kafka's ``ClusterControlManager``, ``BrokerHeartbeatManager`` and ``ReplicationControlManager``; KIP-631
(registration, heartbeats), KIP-841 (fenced replicas and shutdown), KIP-858 (directories), KIP-966 (unclean shutdown). A
broker's states, and the effect of its heartbeat:

=====================  ==========================  ======================================================
state                  heartbeat                   next
=====================  ==========================  ======================================================
fenced                 wants to shut down          fenced, should shut down
fenced                 wants to be fenced          fenced
fenced                 has applied its own         unfenced; leaderless partitions that it can lead get
                       registration                a leader
unfenced               wants to be fenced          fenced: leaves every ISR, its leaderships move
unfenced               wants to shut down, leads   controlled shutdown: the same, but not fenced yet
unfenced               wants to shut down          fenced, should shut down
controlled shutdown    still leads, or an active   controlled shutdown
                       broker has not seen it
controlled shutdown    else                        fenced, should shut down
any but fenced         none for the session time   fenced
fenced                 none: unregistered by hand  unregistered; its next heartbeat is STALE_BROKER_EPOCH, and
                                                   it registers again
=====================  ==========================  ======================================================
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence

from tidelog.metadata_quorum.controller.broker_liveness import BrokerLiveness
from tidelog.metadata_quorum.controller.decision import Decision, PartitionUpdates, stale_epoch
from tidelog.metadata_quorum.controller.features import registration_fault
from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import BROKER, BrokerRegistration, MetadataImage, directory_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerEpoch,
    DirectoryId,
    NodeId,
    Offset,
    TopicIdPartition,
    id_text,
)
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.node.replication_settings import CORDONED
from tidelog.proto.calls.api import UnregisterBrokerRequest, UnregisterBrokerResponse
from tidelog.proto.calls.controller_api import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from tidelog.proto.logs.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    DirectoryList,
    MetadataRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

LOG_DIRS_MAX = 100
"""Most log directories per broker."""


class BrokerState(enum.Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "fenced, should shut down"


class BrokerChanges:
    """Decides about brokers, by one controller's settings."""

    def __init__(self, config: NodeConfig, cluster_id: str, configs: ConfigView) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._configs = configs

    # --- Registration ---

    def register(
        self, image: MetadataImage, request: RegisterBrokerRequest, *, has_valid_session: bool
    ) -> Decision[RegisterBrokerResponse]:
        """Give a broker its epoch. A new incarnation starts fenced and out of every ISR. Unless it names the epoch of
        its clean shutdown, it also leaves every ELR."""
        fault = self._registration_fault(image, request, has_valid_session)
        if fault is not None:
            return Decision((), fault)
        existing = image.broker(request.node_id)
        records: list[MetadataRecord] = []
        if existing is not None and existing.record.incarnation_id == request.incarnation_id:
            # The answer to the first request was lost: same incarnation, same epoch.
            broker_epoch = existing.broker_epoch
            records += self.directories_offline(image, request.node_id, set(existing.log_dirs) - set(request.log_dirs))
            fenced, shutting_down = existing.fenced, existing.in_controlled_shutdown
        else:
            broker_epoch = BrokerEpoch(image.broker_epoch_highest + 1)
            fenced, shutting_down = True, False
            clean = existing is not None and request.previous_broker_epoch == existing.broker_epoch
            records += self._leave(image, request.node_id, request.log_dirs, existing, clean=clean)
        records.append(
            RegisterBrokerRecord(
                node_id=request.node_id,
                incarnation_id=request.incarnation_id,
                broker_epoch=broker_epoch,
                listeners=request.listeners,
                rack=request.rack,
                fenced=fenced,
                in_controlled_shutdown=shutting_down,
                log_dirs=request.log_dirs,
                features=request.features,
            )
        )
        return Decision(tuple(records), RegisterBrokerResponse(ErrorCode.NONE, broker_epoch))

    def _registration_fault(
        self, image: MetadataImage, request: RegisterBrokerRequest, has_valid_session: bool
    ) -> RegisterBrokerResponse | None:
        def refused(code: ErrorCode, text: str) -> RegisterBrokerResponse:
            return RegisterBrokerResponse(code, error_message=text)

        if request.cluster_id != self._cluster_id:
            return refused(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"expected cluster id {self._cluster_id!r}, found {request.cluster_id!r}",
            )
        existing = image.broker(request.node_id)
        if (
            existing is not None
            and existing.record.incarnation_id != request.incarnation_id
            and not existing.fenced
            and has_valid_session
        ):
            return refused(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"expected a free node id, found {request.node_id}, under which another broker is alive",
            )
        text = self._request_fault(image, request)
        if text is not None:
            return refused(ErrorCode.INVALID_REGISTRATION, text)
        text = registration_fault(image, "broker", request.features)
        if text is not None:
            return refused(ErrorCode.UNSUPPORTED_VERSION, text)
        return None

    def _request_fault(self, image: MetadataImage, request: RegisterBrokerRequest) -> str | None:
        if request.node_id < 0:
            return f"expected a node id of at least 0, found {request.node_id}"
        if image.broker(request.node_id) is None and len(image.brokers) >= self._config.controller_brokers_max:
            return (
                f"expected at most {self._config.controller_brokers_max} brokers (controller.brokers.max), found more"
            )
        if len(request.incarnation_id) != 16:
            return f"expected an incarnation id of 16 bytes, found {len(request.incarnation_id)}"
        if not request.listeners:
            return "expected an advertised listener, found none"
        if not 1 <= len(request.log_dirs) <= LOG_DIRS_MAX:
            return f"expected 1 to {LOG_DIRS_MAX} log directories, found {len(request.log_dirs)}"
        if len(set(request.log_dirs)) != len(request.log_dirs):
            return "expected log directories of different ids, found one twice"
        for directory in request.log_dirs:
            if len(directory) != 16 or directory in (UNASSIGNED_DIRECTORY, LOST_DIRECTORY):
                return f"expected the id of a log directory, found {id_text(directory)}"
        taken = set(request.log_dirs)
        for node_id, other in image.brokers.items():
            if node_id != request.node_id and not taken.isdisjoint(other.log_dirs):
                return f"expected log directories of its own, found one of broker {node_id}"
        return None

    def _leave(
        self,
        image: MetadataImage,
        node_id: NodeId,
        log_dirs: tuple[DirectoryId, ...],
        existing: BrokerRegistration | None,
        *,
        clean: bool,
    ) -> Iterable[MetadataRecord]:
        """Take a returning broker out of the ISRs, and after an unclean stop out of the ELRs."""
        updates = PartitionUpdates(image, self._configs)
        # The only directory was replaced: the log's statements about its replicas are no longer true.
        replaced = not clean and len(log_dirs) == 1 and (existing is None or len(existing.log_dirs) <= 1)
        for at in image.partitions_of(node_id):
            partition = image.topics[at.topic_id].partitions[at.partition]
            directory = directory_of(partition, node_id)
            wiped = replaced and directory != log_dirs[0] and directory != UNASSIGNED_DIRECTORY
            change = updates.change(
                at,
                leaving=(node_id,),
                unclean=not clean,
                wiped=wiped,
                directory=log_dirs[0] if replaced else None,
            )
            if change is not None:
                yield change

    def unregister(self, image: MetadataImage, request: UnregisterBrokerRequest) -> Decision[UnregisterBrokerResponse]:
        """Forget a fenced broker. It left every ISR when it was fenced. As in Kafka, it stays in the replica lists of
        its partitions, and may register again: then as after an unclean stop, since the epoch of its clean stop is
        forgotten. Source: ``ReplicationControlManager.unregisterBroker``."""
        found = image.broker(request.node_id)
        if found is None:
            text = f"expected a registered broker, found {request.node_id}, which is none"
            return Decision((), UnregisterBrokerResponse(ErrorCode.BROKER_ID_NOT_REGISTERED, text))
        if not found.fenced:
            text = (
                f"expected a broker that is not live, found {request.node_id}, which is: move its replicas to others, "
                "stop it, and try again"
            )
            return Decision((), UnregisterBrokerResponse(ErrorCode.INVALID_REQUEST, text))
        records: list[MetadataRecord] = [UnregisterBrokerRecord(request.node_id, found.broker_epoch)]
        if image.is_cordoned(request.node_id):
            # Otherwise another broker with this id would get no replicas, for no visible reason.
            records.append(ConfigRecord(BROKER, str(request.node_id), CORDONED, None))
        return Decision(tuple(records), UnregisterBrokerResponse(ErrorCode.NONE))

    # --- Heartbeats ---

    def next_state(
        self, image: MetadataImage, request: BrokerHeartbeatRequest, registered_at: Offset, liveness: BrokerLiveness
    ) -> BrokerState:
        """Return the state of a registered broker with the right epoch after its heartbeat, by the table above."""
        registration = image.brokers[request.node_id]
        if registration.fenced:
            if request.want_shut_down:
                return BrokerState.SHUTDOWN_NOW
            caught_up = request.current_metadata_offset >= registered_at
            return BrokerState.UNFENCED if caught_up and not request.want_fence else BrokerState.FENCED
        if registration.in_controlled_shutdown:
            active = [node for node, found in image.brokers.items() if found.active]
            if image.leads_any(request.node_id) or not liveness.is_seen_by_all(request.node_id, active):
                return BrokerState.CONTROLLED_SHUTDOWN
            return BrokerState.SHUTDOWN_NOW
        if request.want_fence:
            return BrokerState.SHUTDOWN_NOW if request.want_shut_down else BrokerState.FENCED
        if request.want_shut_down:
            leads = image.leads_any(request.node_id)
            return BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW
        return BrokerState.UNFENCED

    def heartbeat(
        self, image: MetadataImage, request: BrokerHeartbeatRequest, registered_at: Offset, liveness: BrokerLiveness
    ) -> Decision[BrokerHeartbeatResponse]:
        """Process a heartbeat. ``registered_at``: offset of the broker's registration, once committed."""
        stale = stale_epoch(image, request.node_id, request.broker_epoch)
        if stale is not None:
            return Decision((), BrokerHeartbeatResponse(stale.code, error_message=stale.message))
        state = self.next_state(image, request, registered_at, liveness)
        registration = image.brokers[request.node_id]
        records: list[MetadataRecord] = []
        match state:
            case BrokerState.FENCED | BrokerState.SHUTDOWN_NOW if not registration.fenced:
                records += self.fence(image, (request.node_id,))
            case BrokerState.UNFENCED if registration.fenced:
                records += self.unfence(image, request.node_id)
            case BrokerState.CONTROLLED_SHUTDOWN if not registration.in_controlled_shutdown:
                records += self.begin_shutdown(image, request.node_id)
            case _:
                pass
        if request.offline_log_dirs:
            after = apply_records(image, records, image.offset, image.epoch)[0] if records else image
            records += self.directories_offline(after, request.node_id, request.offline_log_dirs)
        return Decision(
            tuple(records),
            BrokerHeartbeatResponse(
                error=ErrorCode.NONE,
                is_caught_up=request.current_metadata_offset >= registered_at,
                is_fenced=state in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW),
                should_shut_down=state is BrokerState.SHUTDOWN_NOW,
            ),
        )

    # --- Consequences of a broker's state ---

    def fence(self, image: MetadataImage, nodes: Sequence[NodeId]) -> list[MetadataRecord]:
        """Fence brokers: they leave every ISR, their leaderships move to other brokers, then they are fenced. The
        fencings are the last records, so that a controller that finds the change half done sees silent, unfenced
        brokers and repeats it. A fenced broker is no longer in controlled shutdown: it has nothing left to hand
        over."""
        records: list[MetadataRecord] = []
        for node_id in nodes:
            found = image.brokers[node_id]
            shutting_down = False if found.in_controlled_shutdown else None
            records.append(
                BrokerRegistrationChangeRecord(
                    node_id, found.broker_epoch, fenced=True, in_controlled_shutdown=shutting_down
                )
            )
        held = sorted({at for node_id in nodes for at in image.partitions_of(node_id)})
        return [*self._leave_isrs(image, nodes, held), *records]

    def unfence(self, image: MetadataImage, node_id: NodeId) -> list[MetadataRecord]:
        """Unfence a broker: leaderless partitions that it can lead get a leader."""
        updates = PartitionUpdates(image, self._configs)
        held = image.replicas.get(node_id)
        leaderless = [] if held is None else sorted(at for at in image.leaderless if at in held)
        changes = [updates.change(at, joining=node_id) for at in leaderless]
        record = BrokerRegistrationChangeRecord(node_id, image.brokers[node_id].broker_epoch, fenced=False)
        return [record, *(change for change in changes if change is not None)]

    def begin_shutdown(self, image: MetadataImage, node_id: NodeId) -> list[MetadataRecord]:
        """Start a controlled shutdown: the broker leaves every ISR and gives up its leaderships while it still
        serves."""
        record = BrokerRegistrationChangeRecord(
            node_id, image.brokers[node_id].broker_epoch, in_controlled_shutdown=True
        )
        return [record, *self._leave_isrs(image, (node_id,), image.partitions_of(node_id))]

    def directories_offline(
        self, image: MetadataImage, node_id: NodeId, offline: Iterable[DirectoryId]
    ) -> list[MetadataRecord]:
        """Handle failed directories: the replicas on them leave their ISRs; with the last directory all replicas do."""
        registration = image.brokers[node_id]
        failed = set(offline).intersection(registration.log_dirs)
        if not failed:
            return []
        working = tuple(directory for directory in registration.log_dirs if directory not in failed)
        affected = [
            at
            for at in image.partitions_of(node_id)
            if not working or directory_of(image.topics[at.topic_id].partitions[at.partition], node_id) in failed
        ]
        return [
            *self._leave_isrs(image, (node_id,), affected),
            BrokerRegistrationChangeRecord(node_id, registration.broker_epoch, log_dirs=DirectoryList(working)),
        ]

    def _leave_isrs(
        self, image: MetadataImage, nodes: Collection[NodeId], partitions: Iterable[TopicIdPartition]
    ) -> Iterable[MetadataRecord]:
        updates = PartitionUpdates(image, self._configs)
        for at in partitions:
            partition = image.topics[at.topic_id].partitions[at.partition]
            if partition.leader not in nodes and not any(node in nodes for node in partition.isr):
                continue
            change = updates.change(at, leaving=nodes)
            if change is not None:
                yield change
