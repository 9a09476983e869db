"""The calls of consumer groups: finding a coordinator, membership, committed offsets, administration.

Conventions as in :mod:`tidelog.proto.calls.api`. Fields and meanings: the newest version of the Kafka request of
the same name that still speaks the classic group protocol.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, NO_NODE, NO_OFFSET, LeaderEpoch, NodeId, Offset
from tidelog.proto.calls.request import Request, Response

NO_GENERATION: Final = -1
NO_MEMBER: Final = ""

# --- Coordinators ---------------------------------------------------------------------------------

GROUP_COORDINATOR: Final = 0
TRANSACTION_COORDINATOR: Final = 1


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """``keys`` are group ids (``key_type`` 0) or transactional ids (1)."""

    keys: tuple[str, ...]
    key_type: int = GROUP_COORDINATOR


@dataclass(frozen=True, slots=True)
class Coordinator:
    """``node_id`` is -1 if ``error`` is set; host and port are those of the receiving listener."""

    key: str
    error: ErrorCode
    node_id: NodeId = NO_NODE
    host: str = ""
    port: int = -1
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse(Response):
    coordinators: tuple[Coordinator, ...]


# --- Membership: the classic protocol --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupProtocol:
    """A protocol that a member supports (a consumer's assignor), with the member's data for it (its subscription)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupRequest(Request["JoinGroupResponse"]):
    """``member_id`` is empty at first: the coordinator then answers MEMBER_ID_REQUIRED with an id to rejoin with
    (KIP-394), except to static members (KIP-345). ``protocols`` in order of preference. Kafka has ``client_id`` in the
    request header. ``admit_unknown``: from a client too old to rejoin with an id, which is admitted immediately. The
    answer waits for the other members."""

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    client_id: str = ""
    reason: str = ""
    admit_unknown: bool = False


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupResponse(Response):
    """``members`` only for the leader, which assigns; with ``skip_assignment`` (KIP-814) it need not."""

    error: ErrorCode
    generation_id: int = NO_GENERATION
    protocol_type: str = ""
    protocol_name: str = ""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = NO_MEMBER
    members: tuple[JoinedMember, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupRequest(Request["SyncGroupResponse"]):
    """``assignments`` only from the leader. The answer waits for the leader. ``protocol_type`` and ``protocol_name``
    empty: not given (KIP-559)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str = ""
    protocol_name: str = ""
    assignments: tuple[MemberAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroupResponse(Response):
    error: ErrorCode
    protocol_type: str = ""
    protocol_name: str = ""
    assignment: bytes = b""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(Request["HeartbeatResponse"]):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatResponse(Response):
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """By id, or a static member only by its instance id (``member_id`` empty: an administrator removes it)."""

    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class LeftMember:
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse(Response):
    error: ErrorCode
    members: tuple[LeftMember, ...] = ()
    error_message: str = ""


# --- Committed offsets ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetCommitPartition:
    """``offset`` is the next to read; ``leader_epoch`` that of the record before it, -1 unknown."""

    topic: str
    partition: int
    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """A member commits under its generation; without one (generation -1, no member id) the group must be
    empty: a consumer that assigns partitions itself, or an administrator. ``link``: the link that copies the offsets,
    "" for everybody else. It may do so for the topics that it fills, until they are promoted."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    partitions: tuple[OffsetCommitPartition, ...]
    link: str = ""


@dataclass(frozen=True, slots=True)
class OffsetCommitResult:
    topic: str
    partition: int
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse(Response):
    results: tuple[OffsetCommitResult, ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetFetchGroup:
    """``all_partitions``: everything the group has committed, or those named. ``member_id`` ("": not given) and
    ``member_epoch`` are checked in a group of the consumer protocol."""

    group_id: str
    partitions: tuple[GroupPartition, ...] = ()
    all_partitions: bool = False
    member_id: str = NO_MEMBER
    member_epoch: int = 0


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    """``require_stable`` (KIP-447): a partition with an offset of an open transaction is
    UNSTABLE_OFFSET_COMMIT."""

    groups: tuple[OffsetFetchGroup, ...]
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """``offset`` -1: nothing is committed."""

    topic: str
    partition: int
    error: ErrorCode
    offset: Offset = NO_OFFSET
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetFetchResult:
    group_id: str
    error: ErrorCode
    offsets: tuple[CommittedOffset, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse(Response):
    groups: tuple[OffsetFetchResult, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    """Deletes committed offsets of partitions that no member is subscribed to (KIP-496)."""

    group_id: str
    partitions: tuple[GroupPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteResult:
    topic: str
    partition: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse(Response):
    error: ErrorCode
    results: tuple[OffsetDeleteResult, ...] = ()
    error_message: str = ""


# --- Administration ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListGroupsRequest(Request["ListGroupsResponse"]):
    """The groups that this broker coordinates; ``states`` and ``types`` (KIP-518, KIP-848) empty: all."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """``protocol_type`` is empty for a group with only offsets; ``group_type`` is "classic" or "consumer"."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class ListGroupsResponse(Response):
    error: ErrorCode
    groups: tuple[ListedGroup, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest(Request["DescribeGroupsResponse"]):
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """``metadata`` from the member, ``assignment`` from the group's leader."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """``error`` GROUP_ID_NOT_FOUND and state "Dead" for a missing group (KIP-1043). The same, except for its
    ``protocol_type``, for one of the consumer protocol."""

    group_id: str
    error: ErrorCode
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[GroupMember, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse(Response):
    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    group_id: str
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse(Response):
    results: tuple[DeletedGroup, ...]
