"""A leader's answers about offsets by time and by epoch, and about producers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import (
    LeaderEpoch,
    NodeId,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicIdPartition,
    TopicPartition,
)
from tidelog.proto.calls.api import (
    AFTER_BYTES_TIMESTAMP,
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    EpochEnd,
    EpochEndPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tidelog.proto.calls.transaction_api import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionProducers,
    ProducerDescription,
)
from tidelog.replication.partition.partition import Partition
from tidelog.replication.partition.replica import Replica
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log


def list_offsets(
    by_name: Mapping[TopicPartition, Replica],
    request: ListOffsetsRequest,
    failed: Callable[[Replica, LogDirFailed], None],
) -> ListOffsetsResponse:
    """Answer ListOffsets; ``failed`` gets logs whose disk failed. A partition named twice is refused, because its
    answers would be indistinguishable (``KafkaApis.handleListOffsetRequest``)."""
    results = []
    named = Counter((item.topic, item.partition) for item in request.partitions)
    for item in request.partitions:
        replica = by_name.get(TopicPartition(item.topic, item.partition))
        if named[item.topic, item.partition] > 1:
            text = f"expected each partition once in a request, found {item.topic}-{item.partition} twice"
            refusal = Refusal(ErrorCode.INVALID_REQUEST, text)
            results.append(_refused(item, refusal))
            continue
        if replica is None:
            results.append(ListOffsetsResult(item.topic, item.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        try:
            results.append(find_offset(replica.partition, item, request.read_committed))
        except LogDirFailed as failure:
            failed(replica, failure)
            results.append(ListOffsetsResult(item.topic, item.partition, ErrorCode.KAFKA_STORAGE_ERROR))
    return ListOffsetsResponse(tuple(results))


def epoch_ends(
    replicas: Mapping[TopicIdPartition, Replica], request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Answer OffsetForLeaderEpoch."""
    results = []
    for item in request.partitions:
        replica = replicas.get(TopicIdPartition(item.topic_id, item.partition))
        if replica is None:
            results.append(EpochEnd(item.topic_id, item.partition, ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            results.append(find_epoch_end(replica.partition, item))
    return OffsetForLeaderEpochResponse(tuple(results))


def describe_producers(
    by_name: Mapping[TopicPartition, Replica], request: DescribeProducersRequest, node_id: NodeId
) -> DescribeProducersResponse:
    """Answer DescribeProducers (KIP-664, ``ReplicaManager.activeProducerState``).

    A transaction that is open here but unknown to its coordinator hangs. It began at ``transaction_start_offset``, and
    its producer was last heard from at ``last_timestamp_ms`` by this replica's clock.
    """
    results = []
    for item in request.partitions:
        replica = by_name.get(TopicPartition(item.topic, item.partition))
        if replica is None:
            results.append(PartitionProducers(item.topic, item.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        leading = replica.partition.led(LeaderEpoch(-1))
        follows = isinstance(leading, Refusal) and leading.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        if isinstance(leading, Refusal) and not (follows and request.any_replica):
            leader, text = replica.partition.state.leader, leading.message
            refused = PartitionProducers(item.topic, item.partition, leading.code, leader, error_message=text)
            results.append(refused)
            continue
        described = tuple(
            ProducerDescription(
                ProducerId(producer.producer_id),
                ProducerEpoch(producer.epoch),
                producer.last_sequence,
                producer.last_used_ms,
                producer.coordinator_epoch,
                Offset(producer.transaction_offset),
            )
            for producer in replica.partition.log.producers.all()
        )
        results.append(
            PartitionProducers(
                item.topic,
                item.partition,
                ErrorCode.NONE,
                replica.partition.state.leader if follows else node_id,
                described,
            )
        )
    return DescribeProducersResponse(tuple(results))


def find_offset(partition: Partition, item: ListOffsetsPartition, read_committed: bool) -> ListOffsetsResult:
    """Answer one partition of ListOffsets (``Partition.fetchOffsetForTimestamp``, KIP-207, KIP-734).

    Records at or past the caller's readable end do not exist for it.
    """
    leading = partition.led(item.current_leader_epoch)
    if isinstance(leading, Refusal):
        return _refused(item, leading)
    latest = partition.latest_offset(read_committed)
    log = partition.log
    match item.timestamp:
        case value if value in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            start = log.log_start_offset
            return ListOffsetsResult(item.topic, item.partition, ErrorCode.NONE, -1, start, log.epoch_at(start))
        case value if value == LATEST_TIMESTAMP:
            if isinstance(latest, Refusal):
                return _refused(item, latest)
            return ListOffsetsResult(item.topic, item.partition, ErrorCode.NONE, -1, latest, leading.epoch)
        case value if value in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
            return ListOffsetsResult(item.topic, item.partition, ErrorCode.NONE)
        case value if value < EARLIEST_PENDING_UPLOAD_TIMESTAMP and value != AFTER_BYTES_TIMESTAMP:
            text = f"expected a timestamp of {EARLIEST_PENDING_UPLOAD_TIMESTAMP} or more, found {item.timestamp}"
            return _refused(item, Refusal(ErrorCode.UNSUPPORTED_VERSION, text))
    if isinstance(latest, Refusal):
        return _refused(item, latest)
    if item.timestamp == AFTER_BYTES_TIMESTAMP:
        after = _after_bytes(log, item, latest)
        if isinstance(after, Refusal):
            return _refused(item, after)
        return ListOffsetsResult(item.topic, item.partition, ErrorCode.NONE, -1, after, leading.epoch)
    found = (
        log.offset_of_max_timestamp(offset_end=latest)
        if item.timestamp == MAX_TIMESTAMP
        else log.offset_for_timestamp(item.timestamp, offset_end=latest)
    )
    if found is None:
        return ListOffsetsResult(item.topic, item.partition, ErrorCode.NONE)
    if isinstance(found, Refusal):
        return _refused(item, found)
    return ListOffsetsResult(item.topic, item.partition, ErrorCode.NONE, *found)


def _after_bytes(log: Log, item: ListOffsetsPartition, end: Offset) -> Offset | Refusal:
    """Return where the batches end that the item asks for. Reads only headers."""
    if item.start_offset < 0 or item.bytes_max <= 0:
        text = f"expected a start offset of 0 or more and 1 byte or more, found {item.start_offset}, {item.bytes_max}"
        return Refusal(ErrorCode.INVALID_REQUEST, text)
    first = offset = max(item.start_offset, log.log_start_offset)
    left = item.bytes_max
    while offset < end and left > 0:
        span = log.find(offset, left, offset_end=end, at_least_one=offset == first)
        if isinstance(span, Refusal):
            return span
        if span is None:
            break
        offset, left = span.next_offset, left - span.size
        span.release()
    return Offset(offset)


def find_epoch_end(partition: Partition, item: EpochEndPartition) -> EpochEnd:
    """Answer one partition of OffsetForLeaderEpoch (``Partition.lastOffsetForLeaderEpoch``, KIP-279, KIP-320)."""
    leading = partition.led(item.current_leader_epoch)
    if isinstance(leading, Refusal):
        return EpochEnd(item.topic_id, item.partition, leading.code)
    epoch, end = partition.log.end_offset_for_epoch(item.leader_epoch)
    return EpochEnd(item.topic_id, item.partition, ErrorCode.NONE, epoch, end)


def _refused(item: ListOffsetsPartition, refusal: Refusal) -> ListOffsetsResult:
    return ListOffsetsResult(item.topic, item.partition, refusal.code, error_message=refusal.message)
