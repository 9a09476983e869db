"""DeleteRecords: move a log's start forward, and wait until every live replica has followed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_LEADER_EPOCH, Offset, TopicPartition
from tidelog.model.names import is_internal
from tidelog.proto.calls.api import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
)
from tidelog.replication.partition.replica import Replica
from tidelog.storage.disk.log_errors import LogDirFailed

TO_HIGH_WATERMARK = -1


def delete_records(
    by_name: Mapping[TopicPartition, Replica],
    request: DeleteRecordsRequest,
    count: PurgeCount,
    failed: Callable[[Replica, LogDirFailed], None],
) -> Awaitable[DeleteRecordsResponse]:
    """Move log starts now; the answer comes when every partition's deletion has ended."""
    answers: list[asyncio.Future[DeleteRecordsResult] | DeleteRecordsResult] = []
    for item in request.partitions:
        replica = by_name.get(TopicPartition(item.topic, item.partition))
        if replica is None:
            answers.append(DeleteRecordsResult(item.topic, item.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        purge = Purge(replica, item, count, request.link)
        purge.begin(request.timeout_ms, failed)
        answers.append(purge.future)
    return _gathered(answers)


class PurgeCount:
    """The number of pending deletions on the node."""

    __slots__ = ("maximum", "waiting")

    def __init__(self, maximum: int) -> None:
        self.waiting = 0
        self.maximum = maximum


class Purge:
    """One partition's deletion in progress on its replicas.

    Answered with the low watermark: the smallest log start of the live replicas (``ReplicaManager.deleteRecords``). Its
    timeout is REQUEST_TIMED_OUT; the deletion continues anyway.
    """

    __slots__ = ("_count", "_epoch", "_item", "_link", "_offset", "_replica", "_timer", "future")

    def __init__(self, replica: Replica, item: DeleteRecordsPartition, count: PurgeCount, link: str) -> None:
        self._replica = replica
        self._item = item
        self._link = link
        self._count = count
        self._offset = Offset(item.offset)
        self._epoch = NO_LEADER_EPOCH
        self._timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[DeleteRecordsResult] = asyncio.get_running_loop().create_future()

    def begin(self, timeout_ms: int, failed: Callable[[Replica, LogDirFailed], None]) -> None:
        refusal = self._advance(failed)
        if refusal is not None:
            self._answer(refusal.code, refusal.message)
            return
        if self._is_done():
            return
        if timeout_ms <= 0 or self._count.waiting >= self._count.maximum:
            self._answer(ErrorCode.REQUEST_TIMED_OUT)
            return
        self._count.waiting += 1
        self._replica.purges[self] = None
        self._timer = asyncio.get_running_loop().call_later(
            timeout_ms / 1000, self._answer, ErrorCode.REQUEST_TIMED_OUT
        )
        self.future.add_done_callback(self._leave)

    def reached(self, replica: Replica) -> None:
        """Implements :class:`~tidelog.replication.partition.replica.ReachWatch`."""
        self._is_done()

    def _advance(self, failed: Callable[[Replica, LogDirFailed], None]) -> Refusal | None:
        partition = self._replica.partition
        leading = partition.led(NO_LEADER_EPOCH)
        if isinstance(leading, Refusal):
            return leading
        if is_internal(self._item.topic):
            return Refusal(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"expected a topic of clients, found {self._item.topic!r}"
            )
        fault = partition.state.config.link_fault(self._link) if self._link else None
        if fault is not None:
            return Refusal(ErrorCode.INVALID_REQUEST, f"{self._item.topic}: {fault}")
        # A topic that keeps everything still allows explicit deletion; only compaction forbids it.
        if partition.state.config.compacts and not partition.state.config.deletes:
            return Refusal(
                ErrorCode.POLICY_VIOLATION, f"expected a topic with cleanup.policy delete, found {self._item.topic}"
            )
        log, high_watermark = partition.log, partition.high_watermark
        if self._offset == TO_HIGH_WATERMARK:
            self._offset = high_watermark
        if not 0 <= self._offset <= high_watermark:
            return Refusal(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"expected an offset from 0 to the high watermark {high_watermark}, found {self._offset}",
            )
        self._epoch = leading.epoch
        if self._offset > log.log_start_offset:
            try:
                log.advance_log_start(self._offset)
            except LogDirFailed as failure:
                failed(self._replica, failure)
                return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            self._replica.log_start_moved()
        return None

    def _is_done(self) -> bool:
        """Answer if every live replica has followed, or if this node can no longer tell."""
        partition = self._replica.partition
        leading = partition.led(self._epoch)
        if isinstance(leading, Refusal):
            self._answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, leading.message)
            return True
        low = leading.low_watermark(partition.log.log_start_offset)
        if low < self._offset:
            return False
        self._answer(ErrorCode.NONE, low_watermark=low)
        return True

    def _answer(self, error: ErrorCode, message: str = "", *, low_watermark: Offset = Offset(-1)) -> None:
        if not self.future.done():
            self.future.set_result(
                DeleteRecordsResult(self._item.topic, self._item.partition, error, low_watermark, message)
            )

    def _leave(self, _: asyncio.Future[DeleteRecordsResult]) -> None:
        self._count.waiting -= 1
        self._replica.purges.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()


async def _gathered(
    answers: Sequence[asyncio.Future[DeleteRecordsResult] | DeleteRecordsResult],
) -> DeleteRecordsResponse:
    results = [answer if isinstance(answer, DeleteRecordsResult) else await answer for answer in answers]
    return DeleteRecordsResponse(tuple(results))
