"""What a coordinator of this node does with the partitions that it leads: append, read, wait for the commit.

Unlike a client's, its calls name the leader epoch under which they were decided: one of another epoch
does nothing. Its batches are not validated (Kafka's ``AppendOrigin.COORDINATOR``), only measured.

Errors are what a coordinator tells its clients (Kafka's ``CoordinatorOperationExceptionHelper``):
NOT_COORDINATOR where this node does not lead, or not any more; COORDINATOR_NOT_AVAILABLE where the ISR is
too small; else the replica's own.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset, TopicPartition
from tidelog.proto.network import Buffer
from tidelog.proto.records import split_batches
from tidelog.replication.partition import Partition
from tidelog.replication.replica import Replica
from tidelog.storage.append_checks import Origin
from tidelog.storage.log_errors import LogDirFailed
from tidelog.storage.log_read import LogRead
from tidelog.storage.producer_state import VerificationGuard

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


class Identity(NamedTuple):
    """A producer id under one of its epochs."""

    id: int
    epoch: int


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
        """``appended`` hears of each partition that grew, ``failed`` of a log whose disk failed."""
        self._replicas = replicas
        self._clock = clock
        self._appended = appended
        self._failed = failed
        self._waits: dict[Replica, _CommitWaits] = {}

    def append(self, at: TopicPartition, leader_epoch: LeaderEpoch, batch: Buffer) -> asyncio.Future[ErrorCode]:
        """Append one batch now; NONE once the high watermark has passed it.

        NOT_COORDINATOR, later, where leadership ends first: the outcome is unknown then. Every
        refusal is there at once and says that nothing was written; there is no timeout.
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
        """NONE once the high watermark is at ``offset`` or beyond it; NOT_COORDINATOR where leadership ends first."""
        replica = self._led(at, leader_epoch)
        return _done(replica.code) if isinstance(replica, Refusal) else self._wait(replica, leader_epoch, offset)

    def bounds(self, at: TopicPartition, leader_epoch: LeaderEpoch) -> Bounds | Refusal:
        """Where the log starts and ends now."""
        replica = self._led(at, leader_epoch)
        if isinstance(replica, Refusal):
            return replica
        log = replica.partition.log
        return Bounds(log.log_start_offset, log.log_end_offset)

    def read(self, at: TopicPartition, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int) -> LogRead | Refusal:
        """Whole batches from ``offset`` on, at least one, also beyond the high watermark.

        Where the log's start has moved past ``offset``, from there.
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

    # --- Transactions in a coordinator's own partition -----------------------------------------------

    def has_open_transaction(self, at: TopicPartition, leader_epoch: LeaderEpoch, producer: Identity) -> bool:
        """Whether a transaction of this producer id and epoch is open there: what belongs to it may be appended."""
        replica = self._led(at, leader_epoch)
        if isinstance(replica, Refusal):
            return False
        known = replica.partition.log.producers.get(producer.id)
        return known is not None and known.epoch == producer.epoch and known.transaction_offset >= 0

    def guard(self, at: TopicPartition, leader_epoch: LeaderEpoch, producer: Identity) -> VerificationGuard | Refusal:
        """Begin to watch the producer's state while the coordinator of its transaction is asked to take the partition
        in (see :mod:`tidelog.replication.verifying`): INVALID_PRODUCER_EPOCH where a newer epoch is known.

        A guard of this epoch that stands already is shared, so that several may ask at once.
        """
        replica = self._led(at, leader_epoch)
        if isinstance(replica, Refusal):
            return replica
        producers = replica.partition.log.producers
        known = producers.get(producer.id)
        if known is not None and producer.epoch < known.epoch:
            return Refusal(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"expected epoch {known.epoch} or later from producer {producer.id}, found {producer.epoch}",
            )
        ended_from = producer.epoch + 1
        standing = producers.guard(producer.id)
        if standing is not None and standing.ended_from == ended_from:
            return standing
        return producers.set_guard(producer.id, ended_from)

    def guard_stands(
        self, at: TopicPartition, leader_epoch: LeaderEpoch, producer: Identity, guard: VerificationGuard
    ) -> bool:
        """Whether what was asked for may be appended now: nothing else was, no marker either, and nothing cut off; or
        the transaction is open by now, as somebody else who asked was first."""
        replica = self._led(at, leader_epoch)
        if isinstance(replica, Refusal):
            return False
        stands = replica.partition.log.producers.guard(producer.id) is guard
        return stands or self.has_open_transaction(at, leader_epoch, producer)

    def drop_guard(self, at: TopicPartition, producer: Identity, guard: VerificationGuard) -> None:
        """Nothing will be appended: watch no longer."""
        replica = self._replicas.get(at)
        if replica is not None:
            replica.partition.log.producers.clear_guard(producer.id, guard)

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
    """Those who wait for one partition's high watermark under one leader epoch.

    Implements :class:`~tidelog.replication.replica.ReachWatch`.
    """

    __slots__ = ("_entries", "_number", "_partition", "_registry", "leader_epoch")

    def __init__(self, partition: Partition, leader_epoch: LeaderEpoch, registry: dict[Replica, _CommitWaits]) -> None:
        self._partition = partition
        self.leader_epoch = leader_epoch
        self._registry = registry
        self._number = 0
        self._entries: list[tuple[Offset, int, asyncio.Future[ErrorCode]]] = []
        """By offset, then by age."""

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
