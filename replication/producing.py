"""Produce calls: append in order at the call, answer when the batches are as safe as was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import Offset, TopicIdPartition
from tidelog.model.names import is_internal
from tidelog.proto.frames import ProducedPartition, ProducePartition, ProduceRequest
from tidelog.proto.records import CorruptBatch, split_batches
from tidelog.replication.replica import Replica
from tidelog.replication.waiters import PendingAppend, ProduceBudget, ProduceWait
from tidelog.storage.log_errors import LogDirFailed


class Producing:
    """The leader's side of produce for all partitions of a node."""

    def __init__(
        self,
        replicas: Mapping[TopicIdPartition, Replica],
        clock: Clock,
        *,
        waiters_max: int,
        appended: Callable[[Replica], None],
        failed: Callable[[Replica, LogDirFailed], None],
    ) -> None:
        """``appended`` hears of each partition that grew, ``failed`` of a log whose disk failed."""
        self._replicas = replicas
        self._clock = clock
        self._appended = appended
        self._failed = failed
        self.budget = ProduceBudget(waiters_max)
        self.batches = 0
        self.records = 0
        self.bytes = 0

    def produce(self, request: ProduceRequest) -> asyncio.Future[list[ProducedPartition]]:
        """Append now, in order; the future yields one answer per partition in the request's order.

        acks=all answers once the high watermark has passed the batch, acks=1 once it may be vouched
        for here, acks=0 at once. What is not reached within ``timeout_ms`` is REQUEST_TIMED_OUT: the
        batch stays in the log, its outcome is unknown.
        """
        if request.acks not in (-1, 0, 1):
            return self._all(
                request, ErrorCode.INVALID_REQUIRED_ACKS, f"expected acks 0, 1 or -1, found {request.acks}"
            )
        if self.budget.waiting + len(request.partitions) > self.budget.maximum:
            return self._all(
                request,
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"expected at most {self.budget.maximum} appends to wait for replicas on this node",
            )
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        results: list[ProducedPartition] = []
        waiting: list[tuple[int, Replica, Offset]] = []
        grown: list[Replica] = []
        for item in request.partitions:
            replica = self._replicas.get(TopicIdPartition(item.topic_id, item.partition))
            if replica is None:
                results.append(_refused(item, ErrorCode.UNKNOWN_TOPIC_ID, "no replica of this partition here"))
                continue
            if is_internal(replica.partition.state.topic):
                # Source: ReplicaManager.appendRecordsToLeader
                text = "expected a topic of clients, found one to which only the cluster itself writes"
                results.append(_refused(item, ErrorCode.INVALID_TOPIC_EXCEPTION, text))
                continue
            required = self._append(replica, item, request.acks, now_ms, wall_ms, results)
            if required < 0:
                continue
            grown.append(replica)
            if request.acks != 0:
                waiting.append((len(results) - 1, replica, required))
        for replica in grown:
            self._appended(replica)
        wait = ProduceWait(results, self.budget)
        pending: list[PendingAppend] = []
        for index, replica, required in waiting:
            success = results[index]
            if replica.partition.leading is None:  # its directory failed under a later partition of this request
                results[index] = replica.refused(success, ErrorCode.KAFKA_STORAGE_ERROR)
            elif request.acks == -1:
                if replica.partition.high_watermark < required:
                    pending.append(PendingAppend(required, success, wait, index, replica.committing, replica.timed_out))
                elif (error := replica.partition.commit_error()) is not ErrorCode.NONE:
                    results[index] = replica.refused(success, error)
            elif replica.partition.vouched_end < required:
                pending.append(PendingAppend(required, success, wait, index, replica.vouching, replica.timed_out))
        if pending:
            wait.begin(pending, request.timeout_ms)
        else:
            wait.future.set_result(results)
        return wait.future

    def _append(
        self,
        replica: Replica,
        item: ProducePartition,
        acks: int,
        now_ms: int,
        wall_ms: int,
        results: list[ProducedPartition],
    ) -> Offset:
        """Append one partition's batches and note the answer; returns the offset it needs, -1 on refusal."""
        nothing = ProducedPartition(item.topic_id, item.partition, ErrorCode.NONE)
        try:
            batches = split_batches(item.records)
            if not batches:
                results.append(
                    replica.refused(nothing, ErrorCode.INVALID_RECORD, "expected a record batch, found none")
                )
                return Offset(-1)
            appended = replica.partition.append(batches, acks, now_ms, wall_ms)
        except CorruptBatch as corrupt:
            results.append(replica.refused(nothing, ErrorCode.CORRUPT_MESSAGE, str(corrupt)))
            return Offset(-1)
        except LogDirFailed as failure:
            self._failed(replica, failure)
            results.append(replica.refused(nothing, ErrorCode.KAFKA_STORAGE_ERROR, str(failure)))
            return Offset(-1)
        if isinstance(appended, Refusal):
            results.append(replica.refused(nothing, appended.code, appended.message))
            return Offset(-1)
        self.batches += len(batches)
        self.records += sum([batch.record_count for batch in batches])
        self.bytes += len(item.records)
        results.append(
            ProducedPartition(
                item.topic_id,
                item.partition,
                ErrorCode.NONE,
                appended.base_offset,
                appended.append_time_ms,
                appended.log_start_offset,
            )
        )
        return Offset(appended.last_offset + 1)

    def _all(self, request: ProduceRequest, error: ErrorCode, text: str) -> asyncio.Future[list[ProducedPartition]]:
        future: asyncio.Future[list[ProducedPartition]] = asyncio.get_running_loop().create_future()
        future.set_result([_refused(item, error, text) for item in request.partitions])
        return future


def _refused(item: ProducePartition, error: ErrorCode, text: str) -> ProducedPartition:
    return ProducedPartition(item.topic_id, item.partition, error, error_message=text)
