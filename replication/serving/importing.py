"""Records from a backup or a link: the leader appends them at their existing offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset, TopicIdPartition, TopicPartition
from tidelog.model.names import is_internal
from tidelog.proto.calls.backup_api import ImportRecordsRequest, ImportRecordsResponse
from tidelog.replication.flushing import RunBlocking
from tidelog.replication.partition.replica import Replica
from tidelog.storage.disk.log_errors import LogDirFailed

BULK_BYTES: Final = 256 * 1024
"""A request with this many bytes counts as part of a bulk import."""
BULK_FLUSH_MS: Final = 250
"""How long such records may wait before their flush begins. Otherwise the kernel would write gigabytes of them together
when it needs the memory."""


class Importing:
    """The leader's side of restores and links, for all partitions of a node."""

    def __init__(
        self,
        replicas: Mapping[TopicIdPartition, Replica],
        clock: Clock,
        committed: Callable[[TopicPartition, LeaderEpoch, Offset], Awaitable[ErrorCode]],
        *,
        appended: Callable[[Replica], None],
        flush: Callable[[Replica], None],
        run_blocking: RunBlocking,
        failed: Callable[[Replica, LogDirFailed], None],
    ) -> None:
        """``committed`` waits for a partition's high watermark; ``appended`` is called for each partition that grew,
        ``flush`` flushes one, and ``failed`` is called for a log whose disk failed."""
        self._replicas = replicas
        self._clock = clock
        self._committed = committed
        self._appended = appended
        self._flush = flush
        self._run_blocking = run_blocking
        self._failed = failed

    async def take(self, request: ImportRecordsRequest, *, checked: bool = False) -> ImportRecordsResponse:
        """Append now, and answer once the in-sync replicas have the records. A repeated request changes nothing.
        ``checked``: this process has compared the CRCs."""
        replica = self._replicas.get(TopicIdPartition(request.topic_id, request.partition))
        if replica is None:
            return ImportRecordsResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="no replica of it here")
        state = replica.partition.state
        if is_internal(state.topic):
            text = f"expected a topic of clients, found {state.topic!r}"
            return ImportRecordsResponse(ErrorCode.INVALID_TOPIC_EXCEPTION, error_message=text)
        leading = replica.partition.led(request.leader_epoch)
        if isinstance(leading, Refusal):
            return _refused(leading)
        fault = state.config.link_fault(request.link)
        end = replica.partition.log.log_end_offset
        if fault is not None:
            return ImportRecordsResponse(ErrorCode.INVALID_REQUEST, end, error_message=f"{state.topic}: {fault}")
        if end < request.log_end_offset or (request.link and request.records and end != request.log_end_offset):
            text = f"expected a log that ends at {request.log_end_offset}, found {end}"
            return ImportRecordsResponse(ErrorCode.OFFSET_OUT_OF_RANGE, error_message=text)
        bulk = len(request.records) >= BULK_BYTES
        log = replica.partition.log
        try:
            taken = replica.partition.import_batches(
                request.records,
                self._clock.monotonic_ms(),
                self._clock.now_ms(),
                bulk=bulk and not request.link,
                checked=checked,
            )
            if (job := log.writing) is not None:
                await self._run_blocking(job.run)
                log.finish_write(job)
                replica.partition.advance(self._clock.monotonic_ms())
        except LogDirFailed as failure:
            self._failed(replica, failure)
            return ImportRecordsResponse(ErrorCode.KAFKA_STORAGE_ERROR, error_message=str(failure))
        if isinstance(taken, Refusal):
            return _refused(taken)
        self._appended(replica)
        waited_ms = log.unflushed_for_ms(self._clock.now_ms())
        if bulk and waited_ms >= BULK_FLUSH_MS:
            self._flush(replica)
        end = Offset(taken.last_offset + 1)
        at = TopicPartition(state.topic, state.partition)
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                error = await self._committed(at, leading.epoch, end)
        except TimeoutError:
            error = ErrorCode.REQUEST_TIMED_OUT
        if error is ErrorCode.NOT_COORDINATOR:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ImportRecordsResponse(error, end)


def _refused(refusal: Refusal) -> ImportRecordsResponse:
    return ImportRecordsResponse(refusal.code, error_message=refusal.message)
