"""Transaction markers: appended on arrival, answered when they are committed.

A marker is a control batch, appended on behalf of a transaction coordinator; no client can send one. The partition's
producer state checks it first (:mod:`tidelog.storage.producers.state`). The log of a link's target gets no markers from
here. Otherwise a repeated marker is appended again, and so is one for a transaction that is not open; both are
harmless. Source: Kafka's ``KafkaApis.handleWriteTxnMarkersRequest``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import Offset, TopicPartition
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    AddedPartition,
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.transport.frames import ProducedPartition
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.waiters import PendingAppend, ProduceBudget, ProduceWait
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.producers.append_checks import Origin

MARKER_TIMEOUT_MS: Final = 30_000
"""How long a marker may wait for the in-sync replicas (Kafka: ``request.timeout.ms``)."""
SECOND_PROTOCOL: Final = 2
"""From this transaction version on, a marker carries the epoch after its transaction's."""


class _PartitionMarkers:
    """One partition's markers in a request; ``slots``: where their answers go."""

    __slots__ = ("at", "markers", "slots")

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.markers: list[TransactionMarker] = []
        self.slots: list[tuple[int, int]] = []


class Marking:
    """The leader's side of markers for all partitions of a node."""

    def __init__(
        self,
        replicas: Mapping[TopicPartition, Replica],
        clock: Clock,
        budget: ProduceBudget,
        *,
        appended: Callable[[Replica], None],
        failed: Callable[[Replica, LogDirFailed], None],
    ) -> None:
        """``budget`` bounds the waits of the whole node. ``appended`` and ``failed`` are as in ``Producing``."""
        self._replicas = replicas
        self._clock = clock
        self._budget = budget
        self._appended = appended
        self._failed = failed
        self.written = 0

    def write(self, request: WriteTxnMarkersRequest) -> asyncio.Future[WriteTxnMarkersResponse]:
        """Append now, in order; the future yields an answer for each marker and partition once all are known.

        NONE: committed. TRANSACTION_COORDINATOR_FENCED and INVALID_PRODUCER_EPOCH are final; the others may be retried,
        even REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND, although the marker is then in the log. Cancelling
        the future forgets the answer, not the markers.
        """
        future: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()
        answers = [[ErrorCode.NONE] * len(marker.partitions) for marker in request.markers]
        by_partition: dict[TopicPartition, _PartitionMarkers] = {}
        for number, marker in enumerate(request.markers):
            for slot, (topic, partition) in enumerate((each.topic, each.partition) for each in marker.partitions):
                at = TopicPartition(topic, partition)
                part = by_partition.setdefault(at, _PartitionMarkers(at))
                part.markers.append(marker)
                part.slots.append((number, slot))
        results: list[ProducedPartition] = []
        waiting: list[tuple[int, Replica, Offset]] = []
        told: list[list[tuple[int, int]]] = []
        """For each result, the answers that depend on it."""
        grown: list[Replica] = []
        full = self._budget.waiting + len(by_partition) > self._budget.maximum
        for part in by_partition.values():
            if full:
                refuse(answers, part.slots, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
                continue
            appended = self._append(part, answers)
            if appended is None:
                continue
            replica, required, slots = appended
            grown.append(replica)
            waiting.append((len(results), replica, required))
            told.append(slots)
            key = replica.key
            results.append(ProducedPartition(key.topic_id, key.partition, ErrorCode.NONE))
        for replica in grown:
            self._appended(replica)
        wait = ProduceWait(results, self._budget)
        pending: list[PendingAppend] = []
        for index, replica, required in waiting:
            if replica.partition.leading is None:  # its directory failed under a later partition of this request
                results[index] = replica.refused(ErrorCode.KAFKA_STORAGE_ERROR)
            elif replica.partition.high_watermark < required:
                queue = replica.committing
                pending.append(PendingAppend(required, results[index], wait, index, queue, replica.timed_out))
            elif (error := replica.partition.commit_error()) is not ErrorCode.NONE:
                results[index] = replica.refused(error)

        def finish(done: asyncio.Future[list[ProducedPartition]]) -> None:
            if future.done() or done.cancelled():
                return
            for result, slots in zip(done.result(), told, strict=True):
                refuse(answers, slots, result.error)
            future.set_result(_response(request, answers))

        if not pending:
            wait.future.set_result(results)
            finish(wait.future)
            return future
        wait.begin(pending, MARKER_TIMEOUT_MS)
        wait.future.add_done_callback(finish)
        future.add_done_callback(lambda _: wait.future.cancel())
        return future

    def _append(
        self, part: _PartitionMarkers, answers: list[list[ErrorCode]]
    ) -> tuple[Replica, Offset, list[tuple[int, int]]] | None:
        """Append a partition's markers, if allowed; return the offset that must be committed, and the answers that
        depend on it."""
        replica = self._replicas.get(part.at)
        if replica is None:
            refuse(answers, part.slots, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return None
        partition = replica.partition
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        required = Offset(-1)
        slots: list[tuple[int, int]] = []
        try:
            # In sequence, because each marker is checked against the state that the previous one left.
            for marker, slot in zip(part.markers, part.slots, strict=True):
                refusal = partition.check_marker(
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.coordinator_epoch,
                    bears_next_epoch=marker.transaction_version >= SECOND_PROTOCOL,
                )
                if refusal is None and partition.state.config.link_name:
                    if not partition.log.producers.is_open(marker.producer_id):
                        continue  # from a transaction whose records were refused here; the log remains the source's
                    if partition.state.config.takes_link:
                        refusal = Refusal(ErrorCode.INVALID_REQUEST, "its source ends this transaction")
                outcome = refusal or partition.append(
                    _batch(marker, wall_ms), -1, now_ms, wall_ms, origin=Origin.COORDINATOR
                )
                if isinstance(outcome, Refusal):
                    refuse(answers, [slot], outcome.code)
                    continue
                required = Offset(outcome.last_offset + 1)
                slots.append(slot)
        except LogDirFailed as failure:
            self._failed(replica, failure)
            refuse(answers, part.slots, ErrorCode.KAFKA_STORAGE_ERROR)
            return None
        self.written += len(slots)
        return (replica, required, slots) if slots else None


def refuse(answers: list[list[ErrorCode]], slots: Sequence[tuple[int, int]], error: ErrorCode) -> None:
    """Note one answer for several markers."""
    for number, slot in slots:
        answers[number][slot] = error


def _batch(marker: TransactionMarker, wall_ms: int) -> list[Batch]:
    raw = encode_control_batch(
        ControlKind.COMMIT if marker.committed else ControlKind.ABORT,
        timestamp=wall_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
    )
    return split_batches(raw)


def _response(request: WriteTxnMarkersRequest, answers: list[list[ErrorCode]]) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        tuple(
            WrittenMarker(marker.producer_id, _results(marker.partitions, found))
            for marker, found in zip(request.markers, answers, strict=True)
        )
    )


def _results(partitions: Sequence[GroupPartition], found: Sequence[ErrorCode]) -> tuple[AddedPartition, ...]:
    return tuple(
        AddedPartition(each.topic, each.partition, error) for each, error in zip(partitions, found, strict=True)
    )
