"""A broker's standing with the controller: what to send next, and what an answer means. Pure.

    state          on                                   becomes
    -------------  -----------------------------------  -------------
    REGISTERING    registered                           FENCED
    REGISTERING    taken, and so for the whole grace    FAILED
    REGISTERING    refused for good                     FAILED
    FENCED         heartbeat answered: not fenced       RUNNING
    RUNNING        heartbeat answered: fenced           FENCED
    FENCED/RUNNING epoch unknown to the controller      REGISTERING
    any of these   shutdown asked                       SHUTTING_DOWN
    SHUTTING_DOWN  controller agrees, or epoch stale    STOPPED

Source: KIP-631 and Kafka's ``BrokerLifecycleManager``. Deviation: an epoch that the controller no
longer knows makes the broker register again (Kafka's would repeat its heartbeat for ever). It does so
as if it had crashed (previous epoch -1), since somebody else may have acted under its id.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, DirectoryId, NodeId, Offset
from tidelog.proto.calls.controller_api import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    Endpoint,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    SupportedFeature,
)

NO_EPOCH = BrokerEpoch(-1)


class BrokerStanding(enum.Enum):
    """A broker's standing with the controller."""

    REGISTERING = "registering"
    FENCED = "fenced"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting down"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Identity:
    """A broker's description of itself at registration."""

    cluster_id: str
    node_id: NodeId
    incarnation_id: bytes
    listeners: tuple[Endpoint, ...]
    rack: str | None
    features: tuple[SupportedFeature, ...]


class BrokerLifecycle:
    """Decides; the shell in :mod:`tidelog.broker.metadata.lifecycle` sends and waits.

    ``taken_grace_ms``: how long to tolerate DUPLICATE_BROKER_REGISTRATION: the controller may not have noticed yet that
    an earlier process of this node has died. The time starts again when nothing was heard for half of it.
    """

    def __init__(
        self,
        identity: Identity,
        previous_epoch: BrokerEpoch,
        heartbeat_interval_ms: int,
        retry_ms: int,
        taken_grace_ms: int,
    ) -> None:
        self.identity = identity
        self.standing = BrokerStanding.REGISTERING
        self.epoch = NO_EPOCH
        self.failure = ""
        self.ready = False
        """Whether the broker has acted on metadata that holds its registration, and so may be unfenced."""
        self.offline_dirs: tuple[DirectoryId, ...] = ()
        self._previous_epoch = previous_epoch
        self.interval_ms = heartbeat_interval_ms
        self._retry_ms = retry_ms
        self._taken_grace_ms = taken_grace_ms
        self._taken_since_ms: int | None = None
        self._taken_heard_ms = 0
        self._due_ms = 0

    def due_ms(self) -> int:
        """Return when to send the next request, on the monotonic clock."""
        return self._due_ms

    def hurry(self) -> None:
        """Make the next request due now."""
        self._due_ms = 0

    def request(
        self, log_dirs: Sequence[DirectoryId], metadata_offset: Offset
    ) -> RegisterBrokerRequest | BrokerHeartbeatRequest | None:
        """Return what to send now, ``None`` if nothing."""
        who = self.identity
        if self.standing is BrokerStanding.REGISTERING:
            return RegisterBrokerRequest(
                cluster_id=who.cluster_id,
                node_id=who.node_id,
                incarnation_id=who.incarnation_id,
                listeners=who.listeners,
                rack=who.rack,
                log_dirs=tuple(log_dirs),
                features=who.features,
                previous_broker_epoch=self._previous_epoch,
            )
        if self.standing in (BrokerStanding.STOPPED, BrokerStanding.FAILED):
            return None
        return BrokerHeartbeatRequest(
            node_id=who.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=metadata_offset,
            want_fence=not self.ready,
            want_shut_down=self.standing is BrokerStanding.SHUTTING_DOWN,
            offline_log_dirs=self.offline_dirs,
        )

    def registered(self, answer: RegisterBrokerResponse, now_ms: int) -> None:
        """Process the answer to a registration."""
        if self.standing is not BrokerStanding.REGISTERING:
            return
        if answer.error == ErrorCode.NONE:
            self.epoch = answer.broker_epoch
            self._previous_epoch = NO_EPOCH
            self._taken_since_ms = None
            self.standing = BrokerStanding.FENCED
            self._due_ms = now_ms
            return
        if answer.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            if self._taken_since_ms is None or now_ms - self._taken_heard_ms > self._taken_grace_ms // 2:
                # The first answer, or this process was stopped (SIGSTOP): what it receives now was sent long ago.
                self._taken_since_ms = now_ms
            self._taken_heard_ms = now_ms
            if now_ms - self._taken_since_ms < self._taken_grace_ms:
                self._due_ms = now_ms + self._retry_ms
                return
        elif answer.error.retriable:
            self._due_ms = now_ms + self._retry_ms
            return
        self.standing = BrokerStanding.FAILED
        self.failure = f"the controller refused node {self.identity.node_id}: {answer.error.name}" + (
            f": {answer.error_message}" if answer.error_message else ""
        )

    def beaten(self, answer: BrokerHeartbeatResponse, now_ms: int) -> None:
        """Process the answer to a heartbeat."""
        self._due_ms = now_ms + self.interval_ms
        stale = answer.error in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
        if self.standing is BrokerStanding.SHUTTING_DOWN:
            self._due_ms = now_ms + min(self.interval_ms, self._retry_ms)
            if stale or (answer.error == ErrorCode.NONE and answer.should_shut_down):
                self.standing = BrokerStanding.STOPPED
        elif stale:
            self.standing = BrokerStanding.REGISTERING
            self.epoch = NO_EPOCH
            self._due_ms = now_ms
        elif answer.error == ErrorCode.NONE:
            was = self.standing
            self.standing = BrokerStanding.FENCED if answer.is_fenced else BrokerStanding.RUNNING
            if self.standing is BrokerStanding.FENCED and was is BrokerStanding.FENCED:
                self._due_ms = now_ms + min(self.interval_ms, self._retry_ms)

    def unanswered(self, now_ms: int) -> None:
        """Note that no controller answered in time: retry soon, and restart the tolerance for an id in use, because a
        newly elected controller gives an earlier process of this node a whole session again. A broker that cannot reach
        a controller keeps serving."""
        self._due_ms = now_ms + self._retry_ms
        self._taken_since_ms = None

    def shut_down(self) -> None:
        """Request a controlled shutdown with the next heartbeat."""
        if self.standing in (BrokerStanding.FENCED, BrokerStanding.RUNNING):
            self.standing = BrokerStanding.SHUTTING_DOWN
            self._due_ms = 0
        elif self.standing is BrokerStanding.REGISTERING:
            self.standing = BrokerStanding.STOPPED
