"""What a leader answers for one partition of a fetch."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_OFFSET, Offset, ProducerId
from tidelog.proto.frames import FetchedPartition, RecordsInFile
from tidelog.proto.network import Buffer
from tidelog.replication.leader import Diverging
from tidelog.replication.replica import Replica


def fetched(
    replica: Replica,
    records: Sequence[Buffer] = (),
    aborted: Sequence[tuple[ProducerId, Offset]] = (),
    in_files: Sequence[RecordsInFile] = (),
) -> FetchedPartition:
    """Records, or none, and how far the partition has got. ``aborted``: of these records' transactions."""
    partition = replica.partition
    return FetchedPartition(
        replica.key.topic_id,
        replica.key.partition,
        ErrorCode.NONE,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        current_leader=partition.state.leader,
        current_leader_epoch=partition.state.leader_epoch,
        aborted=aborted,
        records=records,
        in_files=in_files,
    )


def refused_fetch(replica: Replica, error: ErrorCode, *, leader_log_end: Offset = NO_OFFSET) -> FetchedPartition:
    """An answer with an error that names the leader this node knows (KIP-951).

    With OFFSET_OUT_OF_RANGE to a follower, ``log_start_offset`` and ``diverging_end_offset`` say from
    where to where the leader's log goes, which spares the follower the question.
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
