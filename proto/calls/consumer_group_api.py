"""The calls of the consumer protocol (KIP-848): the heartbeat, which also joins and leaves, and the description.

Conventions as in :mod:`tidelog.proto.calls.api`. Fields and meanings: Kafka's requests of the same names.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.proto.calls.request import Request, Response

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2
"""A static member leaves, and may return within its session timeout."""
UNCHANGED_MS: Final = -1


@dataclass(frozen=True, slots=True)
class TopicNames:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicIdPartitions:
    topic_id: TopicId
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IdAssignment:
    """Partitions by topic, each topic once."""

    topics: tuple[TopicIdPartitions, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest(Request["ConsumerGroupHeartbeatResponse"]):
    """``member_epoch``: 0 joins, -1 leaves, -2 leaves temporarily. None, or a timeout of -1: unchanged. ``topics`` and
    ``regex`` are the member's subscription, ``owned`` its current partitions. Kafka has ``client_id`` in the request
    header. An empty member id (version 0) asks for one."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    topics: TopicNames | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: IdAssignment | None = None
    client_id: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatResponse(Response):
    """``assignment``: the partitions that the member may have now; None: unchanged."""

    error: ErrorCode
    error_message: str = ""
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: IdAssignment | None = None


@dataclass(frozen=True, slots=True)
class NamedPartitions:
    topic_id: TopicId
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """``assignment``: its current partitions; ``target``: its future ones; ``is_classic``: it speaks the classic
    protocol."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    assignment: tuple[NamedPartitions, ...]
    target: tuple[NamedPartitions, ...]
    is_classic: bool = False


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """``error`` GROUP_ID_NOT_FOUND for a group that does not exist or uses the classic protocol."""

    group_id: str
    error: ErrorCode
    error_message: str = ""
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ConsumerGroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest(Request["ConsumerGroupDescribeResponse"]):
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeResponse(Response):
    groups: tuple[DescribedConsumerGroup, ...]
