"""Admin client calls for replicas and leaders, under the names of Kafka's ``Admin`` (KIP-455, KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.client.admin.base import AdminBase, raise_first
from tidelog.client.errors import TidelogError, exception_for
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.calls.reassignment_api import (
    PREFERRED,
    UNCLEAN,
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    NamedPartition,
    PartitionReassignment,
    PartitionResult,
)


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """A partition whose replicas are moving. ``replicas``: all current ones, including those being added
    (``adding_replicas``) and removed (``removing_replicas``)."""

    replicas: tuple[NodeId, ...]
    adding_replicas: tuple[NodeId, ...]
    removing_replicas: tuple[NodeId, ...]

    @property
    def target_replicas(self) -> tuple[NodeId, ...]:
        """The partition's final replicas, the preferred leader first."""
        return tuple(node for node in self.replicas if node not in self.removing_replicas)


class ReassignmentAdmin(AdminBase):
    """The calls of :class:`tidelog.client.admin.admin.AsyncAdmin` for the placement of replicas and leaders."""

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Move partitions to other brokers: give each partition's future nodes, the preferred leader first; ``None``
        cancels its move.

        Returns when the move is decided, not when the replicas have moved; :meth:`list_partition_reassignments` shows
        moves in progress. A new request for a moving partition replaces the old one. You may name brokers that are
        down; the reassignment waits for them. Partitions succeed or fail individually. Raises
        ``InvalidReplicaAssignmentError`` (no node, a node twice, an unregistered node, too few in-sync replicas that
        stay), ``InvalidReplicationFactorError`` (another number of replicas, without
        ``allow_replication_factor_change``), ``NoReassignmentInProgressError``, ``UnknownTopicOrPartitionError``.
        """
        items = tuple(
            PartitionReassignment(at[0], at[1], cancel=True)
            if replicas is None
            else PartitionReassignment(at[0], at[1], tuple(NodeId(node) for node in replicas))
            for at, replicas in reassignments.items()
        )
        request = AlterPartitionReassignmentsRequest(items, self._timeout_ms(timeout), allow_replication_factor_change)
        cancels = None in reassignments.values()
        # The broker itself retries until the timeout. A cancellation with an unknown outcome is not repeated: the
        # move would not be found, though the first attempt has cancelled it.
        answer = await self._ask(
            request, None if cancels else lambda r: (_whole(r.error, r.error_message), *r.partitions), timeout
        )
        _check(answer.error, answer.error_message)
        _raise_failed(answer.partitions)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, OngoingReassignment]:
        """Return the partitions whose replicas are moving; all of them, or those among ``partitions``. Leaves out
        partitions that do not exist or are not moving."""
        request = ListPartitionReassignmentsRequest(_named(partitions), partitions is None, self._timeout_ms(timeout))
        answer = await self._ask(request, lambda r: (_whole(r.error, r.error_message),), timeout)
        _check(answer.error, answer.error_message)
        return {
            TopicPartition(found.topic, found.partition): OngoingReassignment(
                found.replicas, found.adding, found.removing
            )
            for found in answer.reassignments
        }

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        unclean: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, bool]:
        """Make the preferred (first) replicas lead all partitions, or the named ones. True for each partition with a
        new leader, False if the preferred replica led already; a call for all partitions leaves the latter out.

        With ``unclean``, partitions without a leader get any live replica instead. Records that it lacks are lost, so
        use it only if no complete replica will come back. Raises ``PreferredLeaderNotAvailableError`` (not live, or not
        in sync), ``EligibleLeadersNotAvailableError``, ``UnknownTopicOrPartitionError``; elections that succeeded stay.
        """
        election = UNCLEAN if unclean else PREFERRED
        request = ElectLeadersRequest(election, _named(partitions), partitions is None, self._timeout_ms(timeout))
        answer = await self._ask(request, lambda r: (_whole(r.error, r.error_message),), timeout)
        _check(answer.error, answer.error_message)
        needless = ErrorCode.ELECTION_NOT_NEEDED
        _raise_failed(found for found in answer.partitions if found.error is not needless)
        return {
            TopicPartition(found.topic, found.partition): found.error is ErrorCode.NONE for found in answer.partitions
        }


def _named(partitions: Iterable[TopicPartition] | None) -> tuple[NamedPartition, ...]:
    return tuple(NamedPartition(at[0], at[1]) for at in partitions or ())


def _whole(error: ErrorCode, text: str) -> PartitionResult:
    """Return the outcome of the whole call as one more item."""
    return PartitionResult("", -1, error, text)


def _check(error: ErrorCode, text: str) -> None:
    if error is not ErrorCode.NONE:
        raise exception_for(error, text or error.name)


def _raise_failed(results: Iterable[PartitionResult]) -> None:
    failed: dict[str, TidelogError] = {}
    for found in results:
        if found.error is not ErrorCode.NONE:
            name = f"{found.topic}-{found.partition}"
            failed[name] = exception_for(found.error, f"{name}: {found.error_message or found.error.name}")
    if failed:
        raise_first(failed)
