"""Calls about replica placement and leadership: reassignment and leader election.

Messages in ``proto/v1/reassignments.proto``. Source: KIP-455 (AlterPartitionReassignments,
ListPartitionReassignments), KIP-183 and KIP-460 (ElectLeaders), KIP-860 (a factor that must not change).
"""

from __future__ import annotations

from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.request import Change, Request, Response

PREFERRED: Final = "preferred"
"""The first replica should lead."""
UNCLEAN: Final = "unclean"
"""Any live replica should lead rather than none; records that it lacks are lost."""


@dataclass(frozen=True, slots=True)
class NamedPartition:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """``replicas``: the partition's future nodes, the preferred leader first. ``cancel``: return to the state before
    the reassignment in progress; then ``replicas`` is empty."""

    topic: str
    partition: int
    replicas: tuple[NodeId, ...] = ()
    cancel: bool = False


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest(Change["AlterPartitionReassignmentsResponse"]):
    """Starts, replaces or cancels reassignments; each partition succeeds or fails by itself. It answers when that is
    decided, not when replicas have moved. ``allow_factor_change``: whether a partition may get more or fewer replicas
    than it has."""

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
    """``all_partitions`` or the named ones; missing partitions, and those that are not moving, are left out of the
    answer."""

    partitions: tuple[NamedPartition, ...] = ()
    all_partitions: bool = False
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """``replicas``: all of them, those being added (``adding``), those being removed (``removing``), and those that
    stay."""

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
    """With ``all_partitions``, partitions that needed no election are left out. ``error`` is that of the whole call."""

    error: ErrorCode
    partitions: tuple[PartitionResult, ...] = ()
    error_message: str = ""
