"""Produce calls: append in order at the call, answer when the batches are as safe as was asked for.

What begins a transaction in a partition is appended later, once its coordinator knows of it: see
:mod:`tidelog.replication.verifying`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import Offset, TopicIdPartition
from tidelog.model.names import is_internal
from tidelog.proto.frames import ProducedPartition, ProducePartition, ProduceRequest
from tidelog.proto.records import Batch, CorruptBatch, split_batches
from tidelog.replication.replica import Replica
from tidelog.replication.verifying import Asking, GuardedAppend, Verify, Verifying, is_transactional
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
        verify: Verify | None,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        """``appended`` hears of each partition that grew, ``failed`` of a log whose disk failed."""
        self._replicas = replicas
        self._clock = clock
        self._appended = appended
        self._failed = failed
        self.budget = ProduceBudget(waiters_max)
        self.verifying = Verifying(verify, self._append_verified, appended, spawn, askings_max=waiters_max)
        self.batches = 0
        self.records = 0
        self.bytes = 0

    def produce(
        self, request: ProduceRequest, *, first_protocol: bool = False
    ) -> asyncio.Future[list[ProducedPartition]]:
        """Append now, in order; the future yields one answer per partition in the request's order.

        acks=all answers once the high watermark has passed the batch, acks=1 once it may be vouched
        for here, acks=0 at once. What is not reached within ``timeout_ms`` is REQUEST_TIMED_OUT: the
        batch stays in the log, its outcome is unknown. ``first_protocol``: of transactions; the client has told
        their coordinator of the partitions.
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
        guarded: list[tuple[int, Asking, ProducePartition, Sequence[Batch]]] = []
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
            nothing = ProducedPartition(item.topic_id, item.partition, ErrorCode.NONE)
            try:
                batches = split_batches(item.records)
            except CorruptBatch as corrupt:
                results.append(replica.refused(nothing, ErrorCode.CORRUPT_MESSAGE, str(corrupt)))
                continue
            if is_transactional(batches):
                verdict = self.verifying.look(replica, request, batches, now_ms, first_protocol=first_protocol)
                if isinstance(verdict, Refusal):
                    results.append(replica.refused(nothing, verdict.code, verdict.message))
                    continue
                if verdict is not None:
                    guarded.append((len(results), verdict, item, batches))
                    results.append(nothing)
                    continue
            result, required = self._append(replica, nothing, batches, len(item.records), request.acks, now_ms, wall_ms)
            results.append(result)
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
        for index, asking, item, held in guarded:
            if asking.ended:  # likewise
                results[index] = asking.replica.refused(results[index], ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            pending.append(
                GuardedAppend(
                    Offset(-1), results[index], wait, index, asking, asking.timed_out, held, len(item.records)
                )
            )
        if not pending:
            wait.future.set_result(results)
            return wait.future
        wait.begin(pending, request.timeout_ms)
        new = [asking for _, asking, _, _ in guarded if not (asking.begun or asking.ended)]
        if new:
            assert request.transactional_id is not None
            self.verifying.ask(request.transactional_id, new)
        return wait.future

    def _append_verified(self, entry: GuardedAppend, replica: Replica) -> bool:
        """Append what waited for its transaction's coordinator, and have it answered. Returns whether the log grew."""
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        partition = replica.partition
        result, required = self._append(replica, entry.success, entry.batches, entry.size, -1, now_ms, wall_ms)
        if required < 0:
            entry.answer(result)
            return False
        if partition.high_watermark >= required:
            error = partition.commit_error()
            entry.answer(result if error is ErrorCode.NONE else replica.refused(result, error))
        else:
            entry.required, entry.success = required, result
            entry.queue, entry.timed_out = replica.committing, replica.timed_out
            replica.committing.add(entry)
        return True

    def _append(
        self,
        replica: Replica,
        nothing: ProducedPartition,
        batches: Sequence[Batch],
        size: int,
        acks: int,
        now_ms: int,
        wall_ms: int,
    ) -> tuple[ProducedPartition, Offset]:
        """Append one partition's batches; returns the answer, and the offset it needs, -1 on refusal."""
        if not batches:
            text = "expected a record batch, found none"
            return replica.refused(nothing, ErrorCode.INVALID_RECORD, text), Offset(-1)
        try:
            appended = replica.partition.append(batches, acks, now_ms, wall_ms)
        except LogDirFailed as failure:
            self._failed(replica, failure)
            return replica.refused(nothing, ErrorCode.KAFKA_STORAGE_ERROR, str(failure)), Offset(-1)
        if isinstance(appended, Refusal):
            return replica.refused(nothing, appended.code, appended.message, appended.records), Offset(-1)
        self.batches += len(batches)
        self.records += sum([batch.record_count for batch in batches])
        self.bytes += size
        answer = ProducedPartition(
            nothing.topic_id,
            nothing.partition,
            ErrorCode.NONE,
            appended.base_offset,
            appended.append_time_ms,
            appended.log_start_offset,
        )
        return answer, Offset(appended.last_offset + 1)

    def _all(self, request: ProduceRequest, error: ErrorCode, text: str) -> asyncio.Future[list[ProducedPartition]]:
        future: asyncio.Future[list[ProducedPartition]] = asyncio.get_running_loop().create_future()
        future.set_result([_refused(item, error, text) for item in request.partitions])
        return future


def _refused(item: ProducePartition, error: ErrorCode, text: str) -> ProducedPartition:
    return ProducedPartition(item.topic_id, item.partition, error, error_message=text)
