"""The admin client's calls about replicas and leaders, under the names of Kafka's ``Admin`` (KIP-455, KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.client.admin_base import AdminBase, raise_first
from tidelog.client.errors import TidelogError, exception_for
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.reassignment_api import (
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
    """A partition whose replicas are being moved. ``replicas`` are all that there are now, those that come
    (``adding_replicas``) and those that go (``removing_replicas``) among them."""

    replicas: tuple[NodeId, ...]
    adding_replicas: tuple[NodeId, ...]
    removing_replicas: tuple[NodeId, ...]

    @property
    def target_replicas(self) -> tuple[NodeId, ...]:
        """Who will have the partition in the end, the preferred leader first."""
        return tuple(node for node in self.replicas if node not in self.removing_replicas)


class ReassignmentAdmin(AdminBase):
    """The part of :class:`tidelog.client.admin.AsyncAdmin` that is about where replicas stand and who leads."""

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Move partitions to other brokers: per partition the nodes that are to have it, the preferred leader
        first; ``None`` cancels what is under way there.

        Returns when that is decided, not when the replicas have moved: :meth:`list_partition_reassignments` says what
        is still under way. A partition that is being moved already gets the new wish instead. Brokers that are down
        may be named; the reassignment waits for them. Each partition is judged by itself. Raises
        ``InvalidReplicaAssignmentError`` (no node, one twice, one that is not registered, too few in-sync replicas
        that stay), ``InvalidReplicationFactorError`` (another number of replicas, without
        ``allow_replication_factor_change``), ``NoReassignmentInProgressError``, ``UnknownTopicOrPartitionError``.
        """
        items = tuple(
            PartitionReassignment(at[0], at[1], cancel=True)
            if replicas is None
            else PartitionReassignment(at[0], at[1], tuple(NodeId(node) for node in replicas))
            for at, replicas in reassignments.items()
        )
        request = AlterPartitionReassignmentsRequest(items, self._timeout_ms(timeout), allow_replication_factor_change)
        answer = await self._ask(request, lambda r: (_whole(r.error, r.error_message), *r.partitions), timeout)
        _check(answer.error, answer.error_message)
        _raise_failed(answer.partitions)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, OngoingReassignment]:
        """The partitions whose replicas are being moved; of all, or of those named. One that is not there, or not
        moved, is left out."""
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
        """Let the preferred (first) replicas lead: of all partitions, or of those named. True for each that has
        another leader now, False where the preferred one led already; of all partitions, the latter are left out.

        ``unclean``: instead, give partitions that have *no* leader any live one. What it lacks is lost: only where
        nobody who has everything will come back. Raises ``PreferredLeaderNotAvailableError`` (not live, or not in
        sync), ``EligibleLeadersNotAvailableError``, ``UnknownTopicOrPartitionError``; what was elected stays elected.
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
    """The outcome of a call as a whole, as one more item of it."""
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
