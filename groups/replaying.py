"""Making the state of a partition of ``__consumer_offsets`` from its log: the last record of a key wins.

A record that only other software knows, or that cannot be read, is passed over and counted: it stops nothing.
So is a batch of a transaction: its offsets count only once a control batch says so, which is to be kept here by
producer id (``OffsetMetadataManager.pendingTransactionalOffsets``) when offsets can be committed in
transactions. Until then nobody writes such batches, and control batches end nothing.
"""

from __future__ import annotations

import logging

from tidelog.groups.group import Group
from tidelog.groups.shard_state import ShardState
from tidelog.model.moment import Moment
from tidelog.proto.coordinator_records import (
    NO_TIMESTAMP,
    BadCoordinatorRecord,
    GroupMetadataKey,
    OffsetCommitKey,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from tidelog.proto.record_decoder import decode_records
from tidelog.proto.records import Batch

logger = logging.getLogger(__name__)


class Replaying:
    """Takes batches in the order of the log, then :meth:`finish`."""

    __slots__ = ("_shard", "passed_over", "records")

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard
        self.records = 0
        self.passed_over = 0

    def batch(self, batch: Batch) -> None:
        """Replay one batch. Raises :class:`~tidelog.proto.corrupt_batch.CorruptBatch`."""
        if batch.is_control:
            return
        if batch.is_transactional:
            logger.warning("offsets of a transaction at offset %d are passed over", batch.base_offset)
            self.passed_over += batch.record_count
            return
        for offset, _, key, value, _ in decode_records(batch):
            self.records += 1
            try:
                self._record(b"" if key is None else key, value)
            except BadCoordinatorRecord as cause:
                self.passed_over += 1
                logger.warning("the record at offset %d is passed over: %s", offset, cause)

    def finish(self, now: Moment) -> list[Group]:
        """Drop groups of which nothing is left; return those that have members."""
        found: list[Group] = []
        for group in list(self._shard.groups.values()):
            if group.members:
                found.append(group)
            else:
                self._shard.forget_if_idle(group, now)
        return found

    def _record(self, key: bytes, value: bytes | None) -> None:
        match decode_key(key):
            case OffsetCommitKey(group_id, topic, partition):
                decoded = None if value is None else decode_offset_value(value)
                group = self._shard.groups.get(group_id)
                if group is None:
                    if decoded is None:
                        return
                    group = self._group(group_id)
                group.offsets.load(topic, partition, decoded)
            case GroupMetadataKey(group_id):
                metadata = None if value is None else decode_group_value(value)
                group = self._shard.groups.get(group_id)
                if metadata is None:
                    if group is not None:
                        group.unload()
                    return
                (self._group(group_id) if group is None else group).load(metadata)
            case UnknownKey():
                self.passed_over += 1

    def _group(self, group_id: str) -> Group:
        """A group that the log has: no bound keeps it out."""
        group = self._shard.groups[group_id] = Group(group_id, self._shard.population, NO_TIMESTAMP)
        return group
