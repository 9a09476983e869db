"""Reads a delay topic's partition that this node leads: what is committed, in order, and single records again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

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
KEPT_RECORDS: Final = 20_000
"""Records that were decoded together with those that were wanted, and may be wanted next. At least one fetch's are
kept."""


class NotRead(Exception):
    """The log cannot be read now: this node does not lead it any more, or a disk has failed."""


class DelayLog:
    """See the module. The records are those of ``read_committed``."""

    def __init__(self, replicas: ReplicaManager, key: TopicIdPartition, leader_epoch: LeaderEpoch) -> None:
        self._replicas = replicas
        self._key = key
        self._leader_epoch = leader_epoch
        self._kept: OrderedDict[Offset, list[Record]] = OrderedDict()
        """By the base offset of what was decoded at a time."""
        self._kept_count = 0

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
        record = self._in_kept(offset)
        if record is not None:
            return record
        found = await self._fetch(offset, LOOK_UP_BYTES)
        decoded: list[Record] = []
        for batch in split_batches(b"".join(found.records)):
            if not batch.is_control:
                decoded += decode_records(batch)
        if decoded:
            self._keep(decoded)
        record = self._in_kept(offset)
        if record is None and offset >= found.log_start_offset:
            raise NotRead(f"expected a record at {offset}, found none")
        return record

    def _in_kept(self, offset: Offset) -> Record | None:
        for records in reversed(self._kept.values()):
            if records[0].offset <= offset <= records[-1].offset:
                at = offset - records[0].offset
                if at < len(records) and records[at].offset == offset:
                    return records[at]
                return next((record for record in records if record.offset == offset), None)
        return None

    def _keep(self, records: list[Record]) -> None:
        base = Offset(records[0].offset)
        self._kept_count += len(records) - len(self._kept.pop(base, ()))
        self._kept[base] = records
        while self._kept_count > KEPT_RECORDS and len(self._kept) > 1:
            self._kept_count -= len(self._kept.popitem(last=False)[1])

    async def _fetch(self, offset: Offset, bytes_max: int) -> FetchedPartition:
        answer = await self._asked(offset, bytes_max)
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE and offset < answer.log_start_offset:
            answer = await self._asked(answer.log_start_offset, bytes_max)
        if answer.error is not ErrorCode.NONE:
            raise NotRead(answer.error.name)
        return answer

    async def _asked(self, offset: Offset, bytes_max: int) -> FetchedPartition:
        topic_id, partition = self._key
        item = FetchPartition(topic_id, partition, self._leader_epoch, offset, NO_LEADER_EPOCH, Offset(-1), bytes_max)
        request = FetchRequest(NO_NODE, BrokerEpoch(-1), 0, 0, bytes_max, True, (item,))
        response = await self._replicas.fetch(request)
        found: Sequence[FetchedPartition] = response.partitions
        if response.error is not ErrorCode.NONE or not found:
            raise NotRead(response.error.name)
        return found[0]
