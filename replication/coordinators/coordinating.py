"""A coordinator's access to the partitions that its node leads: append, read, wait for the commit.

Unlike clients, it names the leader epoch of its decision in each call; a call with another epoch does nothing. Its
batches are not validated (Kafka's ``AppendOrigin.COORDINATOR``), only measured.

Errors are those that a coordinator returns to its clients (Kafka's ``CoordinatorOperationExceptionHelper``):
NOT_COORDINATOR if this node is not, or no longer, the leader; COORDINATOR_NOT_AVAILABLE if the ISR is too small; else
the replica's own.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tidelog.model.buffer import Buffer
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset, TopicPartition
from tidelog.proto.records.batches import split_batches
from tidelog.replication.partition.partition import Partition
from tidelog.replication.partition.replica import Replica
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.producers.append_checks import Origin
from tidelog.storage.segments.log_read import LogRead

_AS_COORDINATOR: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class Bounds(NamedTuple):
    """A log's offsets from its start to its end (exclusive)."""

    start: Offset
    end: Offset


class Coordinating:
    """The leader's side of coordinators for all partitions of a node."""

    def __init__(
        self,
        replicas: Mapping[TopicPartition, Replica],
        clock: Clock,
        *,
        appended: Callable[[Replica], None],
        failed: Callable[[Replica, LogDirFailed], None],
    ) -> None:
        """``appended`` is called for each partition that grew, ``failed`` for a log whose disk failed."""
        self._replicas = replicas
        self._clock = clock
        self._appended = appended
        self._failed = failed
        self._waits: dict[Replica, _CommitWaits] = {}

    def append(self, at: TopicPartition, leader_epoch: LeaderEpoch, batch: Buffer) -> asyncio.Future[ErrorCode]:
        """Append one batch now; the result is NONE once the high watermark has passed it.

        If leadership ends first, the result is NOT_COORDINATOR later, and the outcome is unknown. Every refusal is
        immediate and means that nothing was written; there is no timeout.
        """
        replica = self._led(at, leader_epoch)
        if isinstance(replica, Refusal):
            return _done(replica.code)
        partition = replica.partition
        batches = split_batches(batch)
        size, config = max(found.size for found in batches), partition.log.config
        if size > config.max_message_bytes:
            return _done(ErrorCode.MESSAGE_TOO_LARGE)
        if size > config.segment_bytes:
            return _done(ErrorCode.RECORD_LIST_TOO_LARGE)
        try:
            appended = partition.append(
                batches, -1, self._clock.monotonic_ms(), self._clock.now_ms(), origin=Origin.COORDINATOR
            )
        except LogDirFailed as failure:
            self._failed(replica, failure)
            return _done(ErrorCode.NOT_COORDINATOR)
        if isinstance(appended, Refusal):
            return _done(_told(appended).code)
        waiting = self._wait(replica, leader_epoch, Offset(appended.last_offset + 1))
        self._appended(replica)
        return waiting

    def committed(self, at: TopicPartition, leader_epoch: LeaderEpoch, offset: Offset) -> asyncio.Future[ErrorCode]:
        """Return NONE once the high watermark is at or past ``offset``; NOT_COORDINATOR if leadership ends first."""
        replica = self._led(at, leader_epoch)
        return _done(replica.code) if isinstance(replica, Refusal) else self._wait(replica, leader_epoch, offset)

    def bounds(self, at: TopicPartition, leader_epoch: LeaderEpoch) -> Bounds | Refusal:
        """Return where the log starts and ends now."""
        replica = self._led(at, leader_epoch)
        if isinstance(replica, Refusal):
            return replica
        log = replica.partition.log
        return Bounds(log.log_start_offset, log.log_end_offset)

    def read(self, at: TopicPartition, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int) -> LogRead | Refusal:
        """Return whole batches from ``offset`` on, at least one, even beyond the high watermark.

        If the log's start has moved past ``offset``, it reads from there.
        """
        replica = self._led(at, leader_epoch)
        if isinstance(replica, Refusal):
            return replica
        log = replica.partition.log
        try:
            found = log.read(max(offset, log.log_start_offset), bytes_max, offset_end=log.log_end_offset)
        except LogDirFailed as failure:
            self._failed(replica, failure)
            return Refusal(ErrorCode.NOT_COORDINATOR, str(failure))
        return _told(found) if isinstance(found, Refusal) else found

    def _led(self, at: TopicPartition, leader_epoch: LeaderEpoch) -> Replica | Refusal:
        replica = self._replicas.get(at)
        if replica is None:
            return Refusal(ErrorCode.NOT_COORDINATOR, f"no replica of {at} here")
        leading = replica.partition.led(leader_epoch)
        return _told(leading) if isinstance(leading, Refusal) else replica

    def _wait(self, replica: Replica, leader_epoch: LeaderEpoch, offset: Offset) -> asyncio.Future[ErrorCode]:
        partition = replica.partition
        if partition.high_watermark >= offset:
            return _done(ErrorCode.NONE)
        waits = self._waits.get(replica)
        if waits is None:
            waits = self._waits[replica] = _CommitWaits(partition, leader_epoch, self._waits)
            replica.consumers[waits] = None
        assert waits.leader_epoch == leader_epoch, "a role's end wakes its waits"
        return waits.add(offset)


class _CommitWaits:
    """The waiters for one partition's high watermark under one leader epoch.

    Implements :class:`~tidelog.replication.partition.replica.ReachWatch`.
    """

    __slots__ = ("_entries", "_number", "_partition", "_registry", "leader_epoch")

    def __init__(self, partition: Partition, leader_epoch: LeaderEpoch, registry: dict[Replica, _CommitWaits]) -> None:
        self._partition = partition
        self.leader_epoch = leader_epoch
        self._registry = registry
        self._number = 0
        self._entries: list[tuple[Offset, int, asyncio.Future[ErrorCode]]] = []
        """Ordered by offset, then by age."""

    def add(self, offset: Offset) -> asyncio.Future[ErrorCode]:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._number += 1
        insort(self._entries, (offset, self._number, future))
        return future

    def reached(self, replica: Replica) -> None:
        leading = self._partition.leading
        entries = self._entries
        if leading is None or leading.epoch != self.leader_epoch:
            due, code = len(entries), ErrorCode.NOT_COORDINATOR
        else:
            high_watermark = self._partition.high_watermark
            due, code = 0, ErrorCode.NONE
            while due < len(entries) and entries[due][0] <= high_watermark:
                due += 1
        taken, self._entries = entries[:due], entries[due:]
        if not self._entries:
            replica.consumers.pop(self, None)
            if self._registry.get(replica) is self:
                del self._registry[replica]
        for _, _, future in taken:
            if not future.done():
                future.set_result(code)


def _told(refusal: Refusal) -> Refusal:
    return Refusal(_AS_COORDINATOR.get(refusal.code, refusal.code), refusal.message)


def _done(code: ErrorCode) -> asyncio.Future[ErrorCode]:
    future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    future.set_result(code)
    return future
