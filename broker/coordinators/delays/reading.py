"""Reads a delay topic's partition that this node leads: what is committed, in order, and single records again."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from tidelog.broker.coordinators.delays.orders import size_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, NO_NODE, BrokerEpoch, LeaderEpoch, Offset, TopicIdPartition
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.committed_reads import Passed, without_aborted
from tidelog.proto.records.decoder import Record, decode_records
from tidelog.proto.transport.frames import FetchedPartition, FetchPartition, FetchRequest
from tidelog.replication.manager import ReplicaManager

SCAN_BYTES: Final = 256 * 1024
"""How much is read between two turns of the event loop."""
LOOK_UP_BYTES: Final = 64 * 1024
"""How much is read at once for a record that stands soon after the former one; for others one batch."""
SOON: Final = 1_000
KEPT_BYTES: Final = 8 * 1024 * 1024
"""Memory for records that were decoded together with those that were wanted, and may be wanted next. At least one
batch's are kept."""
_RECORD_BYTES: Final = 300
"""What a record takes beside its content."""
_offset: Final = attrgetter("offset")


class NotRead(Exception):
    """The log cannot be read now: this node does not lead it any more, or a disk has failed."""


class DelayLog:
    """See the module. The records are those of ``read_committed``."""

    def __init__(self, replicas: ReplicaManager, key: TopicIdPartition, leader_epoch: LeaderEpoch) -> None:
        self._replicas = replicas
        self._key = key
        self._leader_epoch = leader_epoch
        self._kept: OrderedDict[int, tuple[list[Record], int]] = OrderedDict()
        """The records of a batch, and their size, by the first one's offset."""
        self._bases: list[int] = []
        """These offsets, sorted."""
        self._kept_bytes = 0
        self._looked_up = 0

    async def scan(self, offset: Offset) -> tuple[list[Record], Offset]:
        """Some records from ``offset`` on, and where to go on; no further than the last stable offset."""
        found = await self._fetch(offset, SCAN_BYTES)
        records: list[Record] = []
        next_offset = max(offset, found.log_start_offset)
        for batch in without_aborted(split_batches(b"".join(found.records)), found.aborted):
            next_offset = max(next_offset, Offset(batch.next_offset))
            if not isinstance(batch, Passed) and not batch.is_control:
                records += [record for record in decode_records(batch) if record.offset >= offset]
        return records, Offset(next_offset)

    async def look_up(self, offset: Offset) -> Record | None:
        """The record at this offset, which was scanned; ``None`` if it has been deleted since. Raises
        :class:`NotRead`."""
        soon = 0 <= offset - self._looked_up < SOON
        self._looked_up = offset
        record = self._in_kept(offset)
        if record is not None:
            return record
        found = await self._fetch(offset, LOOK_UP_BYTES if soon else 1)
        for batch in split_batches(b"".join(found.records)):
            if not batch.is_control:
                self._keep(list(decode_records(batch)))
        record = self._in_kept(offset)
        if record is None and offset >= found.log_start_offset:
            raise NotRead(f"expected a record at {offset}, found none")
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            base, (_, size) = self._kept.popitem(last=False)
            self._kept_bytes -= size
            del self._bases[bisect_left(self._bases, base)]
        return record

    def _in_kept(self, offset: Offset) -> Record | None:
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return None
        records, _ = self._kept[self._bases[at]]
        index = bisect_left(records, offset, key=_offset)
        return records[index] if index < len(records) and records[index].offset == offset else None

    def _keep(self, records: list[Record]) -> None:
        if records and records[0].offset not in self._kept:
            size = sum(map(size_of, records)) + _RECORD_BYTES * len(records)
            self._kept[records[0].offset] = records, size
            self._kept_bytes += size
            insort(self._bases, records[0].offset)

    async def _fetch(self, offset: Offset, bytes_max: int) -> FetchedPartition:
        answer = await self._asked(offset, bytes_max)
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE and offset < answer.log_start_offset:
            answer = await self._asked(answer.log_start_offset, bytes_max)
        if answer.error is not ErrorCode.NONE:
            raise NotRead(answer.error.name)
        return answer

    async def grown(self, offset: Offset, wait_s: float) -> None:
        """Wait until there is something from ``offset`` on, the partition has another role, or the time is over."""
        await self._asked(offset, 1, int(wait_s * 1_000))

    async def _asked(self, offset: Offset, bytes_max: int, wait_ms: int = 0) -> FetchedPartition:
        topic_id, partition = self._key
        item = FetchPartition(topic_id, partition, self._leader_epoch, offset, NO_LEADER_EPOCH, Offset(-1), bytes_max)
        request = FetchRequest(NO_NODE, BrokerEpoch(-1), wait_ms, 1, bytes_max, True, (item,))
        response = await self._replicas.fetch(request)
        found: Sequence[FetchedPartition] = response.partitions
        if response.error is not ErrorCode.NONE or not found:
            raise NotRead(response.error.name)
        return found[0]
