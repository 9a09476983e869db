"""Calls about replica placement and leadership: reassignment and leader election.

Messages in ``proto/v1/reassignments.proto``. Source: KIP-455 (AlterPartitionReassignments,
ListPartitionReassignments), KIP-183 and KIP-460 (ElectLeaders), KIP-860 (a factor that must not change).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.request import Change, Request, Response

PREFERRED: Final = "preferred"
"""The first replica is to lead."""
UNCLEAN: Final = "unclean"
"""Any live replica is to lead rather than none; what it lacks is lost."""


@dataclass(frozen=True, slots=True)
class NamedPartition:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """``replicas``: the nodes that are to have the partition, the preferred leader first. ``cancel``: back to what
    it was before the reassignment that is under way; then ``replicas`` is empty."""

    topic: str
    partition: int
    replicas: tuple[NodeId, ...] = ()
    cancel: bool = False


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest(Change["AlterPartitionReassignmentsResponse"]):
    """Begins, replaces or cancels reassignments; each partition is judged by itself. It answers when that is
    decided, not when replicas have moved. ``allow_factor_change``: whether a partition may get more or fewer
    replicas than it has."""

    partitions: tuple[PartitionReassignment, ...]
    timeout_ms: int = 30_000
    allow_factor_change: bool = True


@dataclass(frozen=True, slots=True)
class PartitionResult:
    topic: str
    partition: int
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsResponse(Response):
    """``error`` is that of the whole call."""

    error: ErrorCode
    partitions: tuple[PartitionResult, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    """``all_partitions`` or those named; one that is not there, or is not moved, is left out of the answer."""

    partitions: tuple[NamedPartition, ...] = ()
    all_partitions: bool = False
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """``replicas`` are all of them: those that come (``adding``), those that go (``removing``), and those that stay."""

    topic: str
    partition: int
    replicas: tuple[NodeId, ...]
    adding: tuple[NodeId, ...]
    removing: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsResponse(Response):
    error: ErrorCode
    reassignments: tuple[OngoingReassignment, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest(Change["ElectLeadersResponse"]):
    """``election``: "preferred" or "unclean". ``all_partitions`` or those named."""

    election: str
    partitions: tuple[NamedPartition, ...] = ()
    all_partitions: bool = False
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class ElectLeadersResponse(Response):
    """Of ``all_partitions``, those that needed no election are left out. ``error`` is that of the whole call."""

    error: ErrorCode
    partitions: tuple[PartitionResult, ...] = ()
    error_message: str = ""
