"""A leader's answers for one partition of a fetch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NO_OFFSET, NodeId, Offset, ProducerId
from tidelog.proto.transport.frames import FetchedPartition, RecordsInFile
from tidelog.replication.partition.leader import Diverging
from tidelog.replication.partition.replica import Replica


def fetched(
    replica: Replica,
    records: Sequence[Buffer] = (),
    aborted: Sequence[tuple[ProducerId, Offset]] = (),
    in_files: Sequence[RecordsInFile] = (),
    preferred_read_replica: NodeId = NO_NODE,
    filtered_until: Offset = NO_OFFSET,
) -> FetchedPartition:
    """Return records, or none, and the partition's watermarks. ``aborted``: the aborted transactions with records among
    these. ``preferred_read_replica``: where to read instead. ``filtered_until``: there is nothing else for the reader's
    filter below it."""
    partition = replica.partition
    return FetchedPartition(
        replica.key.topic_id,
        replica.key.partition,
        ErrorCode.NONE,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        diverging_end_offset=filtered_until,
        current_leader=partition.state.leader,
        current_leader_epoch=partition.state.leader_epoch,
        preferred_read_replica=preferred_read_replica,
        aborted=aborted,
        records=records,
        in_files=in_files,
    )


def refused_fetch(replica: Replica, error: ErrorCode, *, leader_log_end: Offset = NO_OFFSET) -> FetchedPartition:
    """Return an answer with an error, and the leader that this node knows (KIP-951).

    With OFFSET_OUT_OF_RANGE to a follower, ``log_start_offset`` and ``diverging_end_offset`` give the start and end of
    the leader's log, so that the follower need not ask.
    """
    partition = replica.partition
    return FetchedPartition(
        replica.key.topic_id,
        replica.key.partition,
        error,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log.log_start_offset,
        diverging_end_offset=leader_log_end,
        current_leader=partition.state.leader,
        current_leader_epoch=partition.state.leader_epoch,
    )


def refused_by_follower(replica: Replica, error: ErrorCode) -> FetchedPartition:
    """Return an answer that sends the client to the leader. librdkafka goes there for an offset outside the log only if
    the offset is above the answer's high watermark; otherwise it resets its position immediately."""
    return replace(refused_fetch(replica, error), high_watermark=NO_OFFSET)


def diverged(replica: Replica, verdict: Diverging) -> FetchedPartition:
    partition = replica.partition
    return FetchedPartition(
        replica.key.topic_id,
        replica.key.partition,
        ErrorCode.NONE,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log.log_start_offset,
        diverging_epoch=verdict.epoch,
        diverging_end_offset=verdict.end_offset,
        current_leader=partition.state.leader,
        current_leader_epoch=partition.state.leader_epoch,
    )
