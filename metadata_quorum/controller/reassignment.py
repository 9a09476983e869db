"""Starts, replaces, cancels and lists moves of replicas to other brokers.

Source: KIP-455, Kafka's ``ReplicationControlManager.alterPartitionReassignments`` and
``PartitionReassignmentReplicas``. The steps for a partition:

=============================  =============================================================================
a request for other replicas   replicas = the requested ones, then the old ones that are not among them;
                               *adding* = requested and not there before; *removing* = there before, not
                               requested
the same during a move         the old ones are still those before the first request; a replica that was being
                               added and is no longer requested goes immediately
a request to cancel            replicas = the old ones; replicas that were being added go immediately
all of *adding* in the ISR     replicas = the requested ones; the removed ones go, with their logs
=============================  =============================================================================

A reassignment ends in :mod:`tidelog.metadata_quorum.controller.partition_change`, with the change that makes it
possible. No replica is dropped immediately if committed records would then be on fewer in-sync replicas than
``min.insync.replicas``, unless the topic allows unclean elections. (Kafka requires one replica; and after a second
request it treats the first one's replicas as the original ones.) After a cancelled reassignment the replicas stay in
the requested order, as in Kafka, so the preferred leader may be a different one.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.metadata_quorum.controller.decision import Decision, PartitionUpdates, default_directory, leader_test
from tidelog.metadata_quorum.controller.partition_change import Assignment, Election, change_partition
from tidelog.metadata_quorum.controller.placement import REPLICATION_FACTOR_MAX, cordoned_fault
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NodeId, TopicIdPartition
from tidelog.model.replica_counts import effective_min_isr
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    NamedPartition,
    OngoingReassignment,
    PartitionReassignment,
    PartitionResult,
)
from tidelog.proto.logs.metadata_records import MetadataRecord, PartitionChangeRecord, PartitionRecord


def alter_reassignments(
    image: MetadataImage, configs: ConfigView, request: AlterPartitionReassignmentsRequest
) -> Decision[AlterPartitionReassignmentsResponse]:
    """Change or refuse each partition individually.

    Refused: a missing partition (UNKNOWN_TOPIC_OR_PARTITION), or one named twice (INVALID_REQUEST); no replicas, the
    same broker twice, an unregistered broker, a new replica on a cordoned one, or a change that would leave too few in
    sync (INVALID_REPLICA_ASSIGNMENT); a different number of replicas if that is not allowed
    (INVALID_REPLICATION_FACTOR); a cancellation without a move in progress (NO_REASSIGNMENT_IN_PROGRESS). Brokers may
    be fenced: the reassignment waits for them.
    """
    updates = PartitionUpdates(image, configs)
    records: list[MetadataRecord] = []
    results: list[PartitionResult] = []
    counted: dict[tuple[str, int], int] = {}
    for item in request.partitions:
        named = (item.topic, item.partition)
        counted[named] = counted.get(named, 0) + 1
    for item in request.partitions:
        if counted[item.topic, item.partition] > 1:
            text = f"expected each partition once in a request, found {item.topic}-{item.partition} twice"
            outcome: Refusal | PartitionChangeRecord | None = Refusal(ErrorCode.INVALID_REQUEST, text)
        else:
            outcome = _alter_one(image, updates, item, allow_factor_change=request.allow_factor_change)
        if isinstance(outcome, Refusal):
            results.append(PartitionResult(item.topic, item.partition, outcome.code, outcome.message))
            continue
        results.append(PartitionResult(item.topic, item.partition, ErrorCode.NONE))
        if outcome is not None:
            records.append(outcome)
    return Decision(tuple(records), AlterPartitionReassignmentsResponse(ErrorCode.NONE, tuple(results)))


def _alter_one(
    image: MetadataImage, updates: PartitionUpdates, item: PartitionReassignment, *, allow_factor_change: bool
) -> Refusal | PartitionChangeRecord | None:
    partition = named_partition(image, item.topic, item.partition)
    if isinstance(partition, Refusal):
        return partition
    before = tuple(node for node in partition.replicas if node not in partition.adding_replicas)
    if item.cancel:
        if not (partition.adding_replicas or partition.removing_replicas):
            return Refusal(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                f"expected a partition whose replicas are moved, found {item.topic}-{item.partition}, whose are not",
            )
        wanted = Assignment(before)
    else:
        text = _fault(image, item.replicas, partition.replicas)
        if text is not None:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        target_now = len(partition.replicas) - len(partition.removing_replicas)
        if not allow_factor_change and len(item.replicas) != target_now:
            text = f"expected {target_now} replicas, as many as there are, found {len(item.replicas)}"
            return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, text)
        removing = tuple(node for node in before if node not in item.replicas)
        adding = tuple(node for node in item.replicas if node not in before)
        wanted = Assignment((*item.replicas, *removing), adding, removing)
    at = TopicIdPartition(partition.topic_id, partition.partition)
    _, min_isr, election = updates.min_isr_and_election(at)
    if election is not Election.UNCLEAN:
        text = _too_few_left(partition, wanted, min_isr)
        if text is not None:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    new = (node for node in wanted.replicas if node not in partition.replicas)
    return change_partition(
        partition,
        can_lead=leader_test(image, partition),
        min_isr=min_isr,
        election=election,
        assignment=wanted,
        directories={node: default_directory(image, node) for node in new},
    )


def named_partition(image: MetadataImage, topic: str, number: int) -> PartitionRecord | Refusal:
    """Return the named partition, or UNKNOWN_TOPIC_OR_PARTITION."""
    found = image.topic(topic)
    partition = None if found is None else found.partitions.get(number)
    if partition is None:
        return Refusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected a partition that exists, found {topic}-{number}"
        )
    return partition


def _fault(image: MetadataImage, replicas: tuple[NodeId, ...], present: tuple[NodeId, ...]) -> str | None:
    """Say what is wrong with the requested replicas (``validateManualPartitionAssignment``); those ``present`` may
    stay."""
    if not 1 <= len(replicas) <= REPLICATION_FACTOR_MAX:
        return f"expected 1 to {REPLICATION_FACTOR_MAX} replicas, found {len(replicas) or 'none'}"
    if len(set(replicas)) != len(replicas):
        return f"expected replicas on different brokers, found {replicas}"
    for node in replicas:
        if image.broker(node) is None:
            return f"expected registered brokers, found {node}, which is none"
        if node not in present and image.is_cordoned(node):
            return cordoned_fault(node)
    return None


def _too_few_left(partition: PartitionRecord, wanted: Assignment, min_isr: int) -> str | None:
    """Say why dropping replicas immediately would leave too few with everything committed, if so."""
    counted_on = {*partition.isr, *partition.eligible_leader_replicas, *partition.last_known_elr}
    if counted_on <= set(wanted.replicas):
        return None
    needed = effective_min_isr(min_isr, wanted.replicas, wanted.adding, wanted.removing)
    left = [node for node in partition.isr if node in wanted.replicas]
    if len(left) >= needed:
        return None
    return (
        f"expected at least {needed} in-sync replicas to stay (min.insync.replicas), found {left or 'none'} of "
        f"{list(partition.isr)}: wait until more of {list(wanted.replicas)} are in sync"
    )


def list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> Decision[ListPartitionReassignmentsResponse]:
    """Return the moves in progress; each partition once."""
    moving = _all_partitions(image) if request.all_partitions else _named(image, request.partitions)
    return Decision(
        (),
        ListPartitionReassignmentsResponse(
            ErrorCode.NONE,
            tuple(
                OngoingReassignment(
                    topic, found.partition, found.replicas, found.adding_replicas, found.removing_replicas
                )
                for topic, found in moving
                if found.adding_replicas or found.removing_replicas
            ),
        ),
    )


def _all_partitions(image: MetadataImage) -> Iterator[tuple[str, PartitionRecord]]:
    for name in sorted(image.topic_ids):
        for partition in image.topics[image.topic_ids[name]].in_order():
            yield name, partition


def _named(image: MetadataImage, wanted: tuple[NamedPartition, ...]) -> Iterator[tuple[str, PartitionRecord]]:
    for item in dict.fromkeys(wanted):
        found = named_partition(image, item.topic, item.partition)
        if not isinstance(found, Refusal):
            yield item.topic, found
