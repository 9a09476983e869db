"""What goes: expired offsets, offsets of deleted topics, groups that are deleted or have nothing left.

Source: KIP-211, KIP-229, ``ClassicGroup.offsetExpirationCondition``, ``GroupCoordinatorShard.deleteGroups``. All of it
is tombstones, which count once the log has them. Where this differs from Kafka: a group's own tombstone is
written once its offsets are gone in the log, or in one batch with theirs; what does not fit in one batch is
written in several, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from tidelog.groups.committing import OffsetChange, offset_record
from tidelog.groups.group import Group
from tidelog.groups.shard_state import EXPIRY_KEY, ShardState, group_error
from tidelog.groups.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.proto.coordinator_records import (
    NO_TIMESTAMP,
    CoordinatorRecord,
    OffsetCommitValue,
    encode_group_key,
)
from tidelog.proto.group_api import DeletedGroup

logger = logging.getLogger(__name__)

_LOOKED_AT_ONCE: Final = 20_000
"""Offsets and groups that one round of a check looks at, so that others have their turn in between."""
_BATCH_BYTES: Final = 256 * 1024
"""What tombstones of one batch may come to, in a topic that allows it."""
_HEADER_BYTES: Final = 61
_RECORD_BYTES: Final = 32
"""What a record of a batch has beside its key and value, at most."""


class Expiring:
    """Removes things from one partition of ``__consumer_offsets``."""

    __slots__ = ("_left", "_shard")

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard
        self._left: list[str] = []  # groups that the check under way has not looked at

    # --- Expiry -------------------------------------------------------------------------------------

    def schedule(self, now: Moment) -> None:
        """Let the next check be one interval away."""
        self._shard.timers.set(EXPIRY_KEY, now.monotonic_ms + self._shard.settings.offsets_retention_check_interval_ms)

    def check(self, now: Moment) -> None:
        """Look over some groups, and come back at once for those that are left."""
        shard = self._shard
        if not self._left:
            self._left = list(shard.groups)
            self._left.reverse()
        changes: list[tuple[Group, OffsetChange]] = []
        looked_at = 0
        while self._left and looked_at < _LOOKED_AT_ONCE:
            group = shard.groups.get(self._left.pop())
            if group is None:
                continue
            looked_at += 1
            for topic, partition, value in group.offsets.items():
                looked_at += 1
                if self._is_expired(group, topic, value, now) and not group.offsets.is_pending(topic, partition):
                    changes.append((group, (topic, partition, None)))
            if group.is_idle:
                self._remove_record(group, now)
        if changes:
            shard.counters.offset_expirations += len(changes)
            logger.info("%d committed offsets have expired", len(changes))
            self._bury(changes, now)
        if self._left:
            shard.timers.set(EXPIRY_KEY, now.monotonic_ms)
        else:
            self.schedule(now)

    def _is_expired(self, group: Group, topic: str, value: OffsetCommitValue, now: Moment) -> bool:
        """Since the group became empty; of a simple group, and of a topic that a stable consumer group is not
        subscribed to any longer, since the commit. An expire timestamp of old counts for itself."""
        if group.is_subscribed(topic):
            return False
        since = value.commit_timestamp
        if group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since = since if group.state_since_ms == NO_TIMESTAMP else group.state_since_ms
            elif group.state is not GroupState.STABLE or group.subscribed_topics is None:
                return False
        if value.expire_timestamp != NO_TIMESTAMP:
            return now.wall_ms >= value.expire_timestamp
        return now.wall_ms - since >= self._shard.settings.offsets_retention_ms

    # --- Deleted topics -----------------------------------------------------------------------------

    def topics_deleted(self, topics: Iterable[str], now: Moment) -> None:
        """Forget what is committed of them. What is on its way is left: it may be of a new topic of that name."""
        names = tuple(dict.fromkeys(topics))
        changes: list[tuple[Group, OffsetChange]] = []
        for group in self._shard.groups.values():
            for topic in names:
                of_topic = group.offsets.committed.get(topic)
                if of_topic is not None:
                    changes += [(group, (topic, partition, None)) for partition in of_topic]
        if changes:
            logger.info("%d committed offsets go with their topics", len(changes))
            self._bury(changes, now)

    # --- Deleted groups -----------------------------------------------------------------------------

    def delete_group(self, group_id: str, waiter: int, now: Moment) -> None:
        """Remove a group without members, with its offsets."""
        shard = self._shard
        group = shard.groups.get(group_id)
        if group is None:
            shard.answer(waiter, DeletedGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND))
        elif group.state is not GroupState.EMPTY:
            shard.answer(waiter, DeletedGroup(group_id, ErrorCode.NON_EMPTY_GROUP))
        elif not shard.can_append:
            shard.answer(waiter, DeletedGroup(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            _GroupRemoval(self, shard, group, waiter).go_on(now)

    # --- Tombstones ---------------------------------------------------------------------------------

    def _bury(self, changes: list[tuple[Group, OffsetChange]], now: Moment) -> None:
        """Write tombstones of many groups, as many batches as it takes."""
        batch: list[tuple[Group, OffsetChange]] = []
        records: list[CoordinatorRecord] = []
        size = _HEADER_BYTES
        for group, change in changes:
            record = offset_record(group.group_id, *change)
            size += record_bytes(record)
            if records and size > self.bytes_max:
                self._write(batch, records, now)
                batch, records, size = [], [], _HEADER_BYTES + record_bytes(record)
            batch.append((group, change))
            records.append(record)
        self._write(batch, records, now)

    def _write(self, batch: list[tuple[Group, OffsetChange]], records: list[CoordinatorRecord], now: Moment) -> None:
        for group, (topic, partition, _) in batch:
            group.offsets.began(topic, partition)
        self._shard.append(records, _Tombstones(self, self._shard, batch), now)

    def settle_if_idle(self, groups: Iterable[Group], now: Moment) -> None:
        """After offsets went: groups that have nothing left go too."""
        for group in groups:
            if not self._shard.forget_if_idle(group, now) and group.is_idle:
                self._remove_record(group, now)

    def _remove_record(self, group: Group, now: Moment) -> None:
        if group.record_number is not None:
            record = CoordinatorRecord(encode_group_key(group.group_id), None)
            self._shard.append([record], _GroupTombstone(self._shard, group), now)
        else:
            self._shard.forget_if_idle(group, now)

    @property
    def bytes_max(self) -> int:
        return min(_BATCH_BYTES, self._shard.batch_bytes_max)


def record_bytes(record: CoordinatorRecord) -> int:
    """What a record adds to a batch, at most."""
    return len(record.key) + (0 if record.value is None else len(record.value)) + _RECORD_BYTES


def _apply(shard: ShardState, group: Group, change: OffsetChange, number: int, error: ErrorCode) -> None:
    topic, partition, _ = change
    if error is not ErrorCode.NONE:
        group.offsets.failed(topic, partition)
        return
    group.offsets.ended(topic, partition, number, None)
    shard.transactions.tombstone(group, topic, partition, number)


def record_removed(group: Group, number: int) -> None:
    """Append ``number`` holds the group's tombstone: a record that was written before it is gone."""
    if group.record_number is not None and group.record_number < number:
        group.record_number = None


class _Tombstones:
    """Tombstones of offsets that nobody waits for. Refused ones are found again by the next check."""

    __slots__ = ("_changes", "_expiring", "_shard")

    def __init__(self, expiring: Expiring, shard: ShardState, changes: list[tuple[Group, OffsetChange]]) -> None:
        self._expiring = expiring
        self._shard = shard
        self._changes = changes

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        for group, change in self._changes:
            _apply(self._shard, group, change, number, error)
        if error is ErrorCode.NONE:
            self._expiring.settle_if_idle({group.group_id: group for group, _ in self._changes}.values(), now)

    def timed_out(self, now: Moment) -> None:
        pass

    def abandoned(self, error: ErrorCode) -> None:
        pass


class _GroupTombstone:
    """The tombstone of a group that had nothing left."""

    __slots__ = ("_group", "_shard")

    def __init__(self, shard: ShardState, group: Group) -> None:
        self._shard = shard
        self._group = group

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        if error is ErrorCode.NONE:
            record_removed(self._group, number)
            self._shard.forget_if_idle(self._group, now)

    def timed_out(self, now: Moment) -> None:
        pass

    def abandoned(self, error: ErrorCode) -> None:
        pass


class _GroupRemoval:
    """A group that an administrator deletes, in as many batches as its offsets take, the group's own tombstone in
    the last."""

    __slots__ = ("_changes", "_expiring", "_group", "_is_last", "_shard", "_waiter")

    def __init__(self, expiring: Expiring, shard: ShardState, group: Group, waiter: int) -> None:
        self._expiring = expiring
        self._shard = shard
        self._group = group
        self._waiter: int | None = waiter
        self._changes: list[OffsetChange] = []
        self._is_last = False

    def go_on(self, now: Moment) -> None:
        """Write the next batch."""
        group = self._group
        keys = group.offsets.keys()
        self._changes = []
        self._is_last = False
        records: list[CoordinatorRecord] = []
        size = _HEADER_BYTES
        for topic, partition, record in _tombstones(group.group_id, keys):
            size += record_bytes(record)
            if records and size > self._expiring.bytes_max:
                break
            records.append(record)
            self._changes.append((topic, partition, None))
        else:
            self._is_last = True
            if group.record_number is not None:
                records.append(CoordinatorRecord(encode_group_key(group.group_id), None))
        if not records:
            self._shard.forget_if_idle(group, now)
            self._tell(ErrorCode.NONE)
            return
        for topic, partition, _ in self._changes:
            group.offsets.began(topic, partition)
        self._shard.append(records, self, now)

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        group = self._group
        for change in self._changes:
            _apply(self._shard, group, change, number, error)
        if error is not ErrorCode.NONE:
            self._tell(group_error(error))
            self._shard.forget_if_idle(group, now)
        elif self._is_last:
            record_removed(group, number)
            self._shard.forget_if_idle(group, now)
            self._tell(ErrorCode.NONE)
        elif group.state is GroupState.EMPTY:
            self.go_on(now)
        else:
            self._tell(ErrorCode.NON_EMPTY_GROUP)

    def timed_out(self, now: Moment) -> None:
        self._tell(group_error(ErrorCode.REQUEST_TIMED_OUT))

    def abandoned(self, error: ErrorCode) -> None:
        self._tell(error)

    def _tell(self, error: ErrorCode) -> None:
        if self._waiter is not None:
            self._shard.answer(self._waiter, DeletedGroup(self._group.group_id, error))
            self._waiter = None


def _tombstones(group_id: str, keys: list[tuple[str, int]]) -> Iterator[tuple[str, int, CoordinatorRecord]]:
    for topic, partition in keys:
        yield topic, partition, offset_record(group_id, topic, partition, None)
