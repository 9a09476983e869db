"""Requests from leaders for another ISR, and from brokers about replicas' directories.

Source: Kafka's ``ReplicationControlManager.alterPartition`` and ``handleAssignReplicasToDirs``; KIP-497
(partition epoch), KIP-841 (eligible replicas), KIP-903 (broker epochs of ISR members), KIP-858
(directories).
"""

from __future__ import annotations

import dataclasses

from tidelog.metadata_quorum.controller.decision import Decision, PartitionUpdates, leader_test, stale_epoch
from tidelog.metadata_quorum.controller.partition_change import change_partition
from tidelog.metadata_quorum.image.change import merged
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import MetadataImage, directory_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LOST_DIRECTORY, UNASSIGNED_DIRECTORY, BrokerEpoch, NodeId, TopicIdPartition
from tidelog.proto.calls.controller_api import (
    AlteredPartition,
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    IsrMember,
)
from tidelog.proto.logs.metadata_records import MetadataRecord, PartitionRecord


def alter_partition(
    image: MetadataImage, configs: ConfigView, request: AlterPartitionRequest
) -> Decision[AlterPartitionResponse]:
    """Change or refuse each partition's ISR individually, as a leader requests.

    In order: unknown partition; an epoch newer than the controller's (NOT_CONTROLLER); an older leader epoch
    (FENCED_LEADER_EPOCH); not the leader (INVALID_REQUEST); an older partition epoch (INVALID_UPDATE_VERSION); a
    malformed ISR (INVALID_REQUEST); a member that is fenced, is shutting down or has another broker epoch, or that
    joins from a failed directory (INELIGIBLE_REPLICA).
    """
    stale = stale_epoch(image, request.node_id, request.broker_epoch)
    if stale is not None:
        return Decision((), AlterPartitionResponse(stale.code))
    updates = PartitionUpdates(image, configs)
    records: list[MetadataRecord] = []
    results: list[AlteredPartition] = []
    seen: set[TopicIdPartition] = set()
    for item in request.partitions:
        at = TopicIdPartition(item.topic_id, item.partition)
        partition = image.partition(*at)
        error = ErrorCode.INVALID_REQUEST if at in seen else _fault(image, request.node_id, item, partition)
        seen.add(at)
        if partition is None or error is not ErrorCode.NONE:
            results.append(_result(item, error, partition))
            continue
        _, min_isr, election = updates.min_isr_and_election(at)
        change = change_partition(
            partition,
            can_lead=leader_test(image, partition),
            min_isr=min_isr,
            election=election,
            isr=[member.node_id for member in item.new_isr],
            # A leader asks for an ISR once it has recovered: Kafka's brokers always send RECOVERED here.
            recovered=True,
        )
        if change is None:
            results.append(_result(item, ErrorCode.NONE, partition))
            continue
        records.append(change)
        after = merged(partition, change)
        results.append(_result(item, _outcome(partition, after), after))
    return Decision(tuple(records), AlterPartitionResponse(ErrorCode.NONE, tuple(results)))


def _fault(
    image: MetadataImage, sender: NodeId, item: AlterPartitionItem, partition: PartitionRecord | None
) -> ErrorCode:
    if partition is None:
        known = item.topic_id in image.topics
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.UNKNOWN_TOPIC_ID
    if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if item.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if item.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = [member.node_id for member in item.new_isr]
    if len(set(members)) != len(members) or sender not in members or not set(members) <= set(partition.replicas):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(image, member, partition) for member in item.new_isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _outcome(before: PartitionRecord, after: PartitionRecord) -> ErrorCode:
    """Return the answer to the leader about its change. If the leader must learn more than the ISR first, it must wait
    for the metadata: if the change has ended a reassignment, it must learn its successor, or the number of replicas
    (``test_a_leader_hears_of_the_end_of_a_reassignment_by_metadata_only``); if the change leaves replicas eligible, it
    must learn the ``min.insync.replicas`` that makes them eligible: with an older, lower value it would commit without
    them (``test_a_leader_hears_of_eligible_replicas_by_metadata_only``)."""
    if after.leader != before.leader:
        return ErrorCode.NEW_LEADER_ELECTED
    more = after.replicas != before.replicas or bool(after.eligible_leader_replicas)
    return ErrorCode.INVALID_UPDATE_VERSION if more else ErrorCode.NONE


def _is_eligible(image: MetadataImage, member: IsrMember, partition: PartitionRecord) -> bool:
    """Return whether a broker may be in an ISR. A joining member must be named with its epoch; for an existing member
    -1, "not known", is enough, as in Kafka.

    Stricter than Kafka: a joining member needs an online directory. Otherwise a leader that does not know of the
    failure would bring back the replica that the controller has just removed, and every acks=all append would wait for
    it (``test_a_replica_on_a_failed_directory_may_not_join``).
    """
    found = image.broker(member.node_id)
    if found is None or not found.active:
        return False
    if member.node_id in partition.isr:
        return member.broker_epoch in (BrokerEpoch(-1), found.broker_epoch)
    return found.broker_epoch == member.broker_epoch and image.has_online_directory(member.node_id, partition)


def _result(item: AlterPartitionItem, error: ErrorCode, partition: PartitionRecord | None) -> AlteredPartition:
    if partition is None:
        return AlteredPartition(item.topic_id, item.partition, error)
    return AlteredPartition(
        topic_id=item.topic_id,
        partition=item.partition,
        error=error,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        partition_epoch=partition.partition_epoch,
    )


def assign_directories(
    image: MetadataImage, configs: ConfigView, request: AssignReplicasToDirsRequest
) -> Decision[AssignReplicasToDirsResponse]:
    """Set the directories of a broker's replicas, as the broker reports.

    A replica that moves to a failed directory leaves the ISR. A replica from a directory that is gone was created
    again, empty: it leaves ISR and ELR, and is not remembered. Skips partitions that were deleted meanwhile, or have no
    replica on the broker.
    """
    stale = stale_epoch(image, request.node_id, request.broker_epoch)
    if stale is not None:
        return Decision((), AssignReplicasToDirsResponse(stale.code))
    registration = image.brokers[request.node_id]
    updates = PartitionUpdates(image, configs)
    records: list[MetadataRecord] = []
    wanted = {TopicIdPartition(found.topic_id, found.partition): found.directory_id for found in request.assignments}
    for at, directory in wanted.items():
        partition = image.partition(*at)
        if partition is None or request.node_id not in partition.replicas:
            continue
        before = directory_of(partition, request.node_id)
        if before == directory:
            continue
        gone = before != UNASSIGNED_DIRECTORY and before not in registration.log_dirs
        offline = directory not in registration.log_dirs
        target = LOST_DIRECTORY if offline else directory
        placed = dataclasses.replace(
            partition,
            directories=tuple(
                target if node == request.node_id else there
                for node, there in zip(partition.replicas, partition.directories, strict=True)
            ),
        )
        _, min_isr, election = updates.min_isr_and_election(at)
        change = change_partition(
            partition,
            can_lead=leader_test(image, placed),
            min_isr=min_isr,
            election=election,
            isr=[node for node in partition.isr if not (offline and node == request.node_id)],
            wiped=(request.node_id,) if gone else (),
            directories={request.node_id: target},
        )
        if change is not None:
            records.append(change)
    return Decision(tuple(records), AssignReplicasToDirsResponse(ErrorCode.NONE))
