"""Produce calls: append in order during the call, answer when the batches are as safe as requested.

The first batch of a transaction in a partition is appended later, once its coordinator knows of it: see
:mod:`tidelog.replication.serving.verifying`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, cast

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import Offset, TopicId, TopicIdPartition
from tidelog.model.names import INTERNAL_TOPICS
from tidelog.proto.records.batches import Batch, CorruptBatch, split_batches
from tidelog.proto.transport.frames import ProducedPartition, ProducePartition, ProduceRequest
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.waiters import PendingAppend, ProduceBudget, Produced, ProduceWait
from tidelog.replication.serving.verifying import Asking, GuardedAppend, Verify, Verifying, is_transactional
from tidelog.storage.disk.log_errors import LogDirFailed

BATCHES_MAX: Final = 10_000
"""Most batches in one request, over all its partitions; each costs time on the event loop, however small. Clients send
one per partition."""


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
        verify: Verify | None,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        """``appended`` is called for each partition that grew, ``failed`` for a log whose disk failed."""
        # A plain tuple finds the same entry, and is created in a sixth of the time.
        self._find = cast(Callable[[tuple[TopicId, int]], Replica | None], replicas.get)
        self._clock = clock
        self._appended = appended
        self._failed = failed
        self.budget = ProduceBudget(waiters_max)
        self.verifying = Verifying(verify, self._append_verified, appended, spawn, askings_max=waiters_max)
        self.batches = 0
        self.records = 0
        self.bytes = 0

    def produce(self, request: ProduceRequest, *, first_protocol: bool = False) -> Produced:
        """Append now, in order; return one answer per partition in the request's order, immediately or by a future.

        acks=all answers once the high watermark has passed the batch, acks=1 once this replica acknowledges it, acks=0
        immediately. After ``timeout_ms`` the answer is REQUEST_TIMED_OUT: the batch stays in the log, and its outcome
        is unknown. ``first_protocol``: the batches belong to transactions of the first protocol, and the client has
        registered the partitions with the coordinator.
        """
        acks = request.acks
        if acks not in (-1, 0, 1):
            text = f"expected acks 0, 1 or -1, found {acks}"
            return [_refused(item, ErrorCode.INVALID_REQUIRED_ACKS, text) for item in request.partitions]
        if self.budget.waiting + len(request.partitions) > self.budget.maximum:
            text = f"expected at most {self.budget.maximum} appends to wait for replicas on this node"
            return [_refused(item, ErrorCode.THROTTLING_QUOTA_EXCEEDED, text) for item in request.partitions]
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        results: list[ProducedPartition] = []
        waiting: list[tuple[int, Replica, Offset]] = []
        grown: list[Replica] = []
        guarded: list[tuple[int, Asking, ProducePartition, Sequence[Batch]]] = []
        left = BATCHES_MAX
        for item in request.partitions:
            topic_id, partition, data = item
            replica = self._find((topic_id, partition))
            if replica is None:
                results.append(_refused(item, ErrorCode.UNKNOWN_TOPIC_ID, "no replica of this partition here"))
                continue
            if replica.partition.state.topic in INTERNAL_TOPICS:
                # Source: ReplicaManager.appendRecordsToLeader
                text = "expected a topic of clients, found one to which only the cluster itself writes"
                results.append(_refused(item, ErrorCode.INVALID_TOPIC_EXCEPTION, text))
                continue
            try:
                batches = split_batches(data, most=left)
                left -= len(batches)
            except CorruptBatch as corrupt:
                left -= corrupt.batches
                results.append(replica.refused(ErrorCode.CORRUPT_MESSAGE, str(corrupt)))
                continue
            if is_transactional(batches):
                verdict = self.verifying.look(replica, request, batches, now_ms, first_protocol=first_protocol)
                if isinstance(verdict, Refusal):
                    results.append(replica.refused(verdict.code, verdict.message))
                    continue
                if verdict is not None:
                    guarded.append((len(results), verdict, item, batches))
                    results.append(ProducedPartition(topic_id, partition, ErrorCode.NONE))
                    continue
            result, required = self._append(replica, batches, len(data), acks, now_ms, wall_ms)
            results.append(result)
            if required < 0:
                continue
            grown.append(replica)
            if acks:
                waiting.append((len(results) - 1, replica, required))
        for replica in grown:
            self._appended(replica)
        unsafe: list[tuple[int, Replica, Offset]] = []
        for index, replica, required in waiting:
            if replica.partition.leading is None:  # its directory failed under a later partition of this request
                results[index] = replica.refused(ErrorCode.KAFKA_STORAGE_ERROR)
            elif acks == -1:
                if replica.partition.high_watermark < required:
                    unsafe.append((index, replica, required))
                elif (error := replica.partition.commit_error()) is not ErrorCode.NONE:
                    results[index] = replica.refused(error)
            elif replica.partition.vouched_end < required:
                unsafe.append((index, replica, required))
        if not unsafe and not guarded:
            return results
        return self._wait(request, results, unsafe, guarded)

    def _wait(
        self,
        request: ProduceRequest,
        results: list[ProducedPartition],
        unsafe: Sequence[tuple[int, Replica, Offset]],
        guarded: Sequence[tuple[int, Asking, ProducePartition, Sequence[Batch]]],
    ) -> Produced:
        """Delay the answer for batches that were appended and must not be acknowledged yet, and for those that will be
        appended once their transaction is known."""
        wait = ProduceWait(results, self.budget)
        pending: list[PendingAppend] = []
        for index, replica, required in unsafe:
            queue = replica.committing if request.acks == -1 else replica.vouching
            pending.append(PendingAppend(required, results[index], wait, index, queue, replica.timed_out))
        for index, asking, item, held in guarded:
            if asking.ended:  # likewise
                results[index] = asking.replica.refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            pending.append(
                GuardedAppend(
                    Offset(-1), results[index], wait, index, asking, asking.timed_out, held, len(item.records)
                )
            )
        if not pending:
            return results
        wait.begin(pending, request.timeout_ms)
        new = [asking for _, asking, _, _ in guarded if not (asking.begun or asking.ended)]
        if new:
            assert request.transactional_id is not None
            self.verifying.ask(request.transactional_id, new)
        return wait.future

    def _append_verified(self, entry: GuardedAppend, replica: Replica) -> bool:
        """Append batches that waited for their transaction's coordinator, and answer or queue them. Returns whether the
        log grew."""
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        partition = replica.partition
        result, required = self._append(replica, entry.batches, entry.size, -1, now_ms, wall_ms)
        if required < 0:
            entry.answer(result)
            return False
        if partition.high_watermark >= required:
            error = partition.commit_error()
            entry.answer(result if error is ErrorCode.NONE else replica.refused(error))
        else:
            entry.required, entry.success = required, result
            entry.queue, entry.timed_out = replica.committing, replica.timed_out
            replica.committing.add(entry)
        return True

    def _append(
        self,
        replica: Replica,
        batches: Sequence[Batch],
        size: int,
        acks: int,
        now_ms: int,
        wall_ms: int,
    ) -> tuple[ProducedPartition, Offset]:
        """Append one partition's batches; return the answer, and the offset that it needs, -1 on refusal."""
        if not batches:
            text = "expected a record batch, found none"
            return replica.refused(ErrorCode.INVALID_RECORD, text), Offset(-1)
        try:
            appended = replica.partition.append(batches, acks, now_ms, wall_ms)
        except LogDirFailed as failure:
            self._failed(replica, failure)
            return replica.refused(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)), Offset(-1)
        if isinstance(appended, Refusal):
            return replica.refused(appended.code, appended.message, appended.records), Offset(-1)
        self.batches += len(batches)
        records = sum([batch.record_count for batch in batches])
        self.records += records
        self.bytes += size
        replica.traffic.records_in += records
        replica.traffic.bytes_in += size
        key = replica.key
        answer = ProducedPartition(
            key.topic_id,
            key.partition,
            ErrorCode.NONE,
            appended.base_offset,
            appended.append_time_ms,
            appended.log_start_offset,
        )
        return answer, Offset(appended.last_offset + 1)


def _refused(item: ProducePartition, error: ErrorCode, text: str) -> ProducedPartition:
    return ProducedPartition(item.topic_id, item.partition, error, error_message=text)
