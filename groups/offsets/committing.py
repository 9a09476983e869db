"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete.

Source: ``OffsetMetadataManager``, ``ClassicGroup.validateOffsetCommit``. A value is read only once the log has
committed it; with ``require_stable``, a partition with a value that is being written, or in an open transaction, is
UNSTABLE_OFFSET_COMMIT (KIP-447), so that a partition's new owner does not start before its former owner's last commit.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.groups.state.consumer_claims import commit_fault, fetch_fault
from tidelog.groups.state.group import CONSUMER, Group
from tidelog.groups.state.shard_state import ShardState, offset_error
from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.model.names import topic_name_fault
from tidelog.proto.calls.group_api import (
    NO_MEMBER,
    CommittedOffset,
    GroupPartition,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResult,
    OffsetFetchGroup,
    OffsetFetchResult,
)
from tidelog.proto.calls.request import Response
from tidelog.proto.logs.coordinator_records import (
    STRING_BYTES_MAX,
    CoordinatorRecord,
    OffsetCommitValue,
    encode_offset_key,
    encode_offset_value,
)

OffsetChange = tuple[str, int, OffsetCommitValue | None]
"""Topic, partition, and the value or None for a tombstone."""


class Committing:
    """Handles the offsets of one partition of ``__consumer_offsets``."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard

    # --- OffsetCommit -------------------------------------------------------------------------------

    def commit(self, request: OffsetCommitRequest, waiter: int, now: Moment) -> None:
        """Answer now if there is nothing to write, else when it is committed in the log."""
        shard = self._shard
        group = shard.groups.get(request.group_id)
        refusal, text = self._commit_refusal(group, request)
        if refusal is ErrorCode.NONE and group is None:
            group = shard.new_group(request.group_id, now)
            if group is None:
                refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
                text = f"expected fewer than {shard.settings.groups_max} groups here (group.coordinator.groups.max)"
        if refusal is not ErrorCode.NONE:
            shard.answer(waiter, commit_answer(request, refusal, text))
            return
        assert group is not None
        member = group.members.get(request.member_id)
        if member is not None:
            shard.restart_session(group, member, now)
        results: list[OffsetCommitResult] = []
        changes: list[OffsetChange] = []
        for item in request.partitions:
            result = self.partition_result(group, item)
            results.append(result)
            if result.error is ErrorCode.NONE:
                value = OffsetCommitValue(item.offset, item.leader_epoch, item.metadata, now.wall_ms)
                changes.append((item.topic, item.partition, value))
        if not changes:
            shard.answer(waiter, OffsetCommitResponse(tuple(results)))
            shard.forget_if_idle(group, now)
            return
        shard.counters.offset_commits += len(changes)

        def answered(error: ErrorCode) -> Response:
            if error is ErrorCode.NONE:
                return OffsetCommitResponse(tuple(results))
            return OffsetCommitResponse(tuple(unless_failed(result, error) for result in results))

        self.change(group, changes, now, waiter, answered)

    def _commit_refusal(self, group: Group | None, request: OffsetCommitRequest) -> tuple[ErrorCode, str]:
        """Return why a member may not commit to the group in its current state (``validateOffsetCommit``)."""
        generation, member_id, instance_id = request.generation_id, request.member_id, request.group_instance_id
        if not self._shard.can_append:
            most = self._shard.settings.appends_max
            text = f"expected fewer than {most} appends under way (group.coordinator.appends.max)"
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, text
        if group is None:
            return (ErrorCode.NONE, "") if generation < 0 else (ErrorCode.ILLEGAL_GENERATION, "")
        if group.consumer is not None:
            topics = self._shard.topics()
            return commit_fault(group.consumer, topics, member_id, instance_id, generation, request.partitions)
        if generation < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE, ""
        if generation < 0 and member_id == NO_MEMBER and instance_id is None:
            text = "expected a group without members, or a member's id and generation"
            return ErrorCode.UNKNOWN_MEMBER_ID, text
        refusal = group.refusal(member_id, instance_id)
        if refusal is not ErrorCode.NONE:
            return refusal, ""
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION, f"expected generation {group.generation}, found {generation}"
        if group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS, ""
        return ErrorCode.NONE, ""

    def partition_result(self, group: Group, item: OffsetCommitPartition) -> OffsetCommitResult:
        """Check whether one offset can be committed to the group."""
        settings = self._shard.settings
        error, text = ErrorCode.NONE, ""
        metadata_max = min(settings.offset_metadata_max_bytes, STRING_BYTES_MAX)
        fault = topic_name_fault(item.topic)
        if fault is not None:
            error, text = ErrorCode.INVALID_TOPIC_EXCEPTION, fault
        elif item.partition < 0:
            error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected a partition, found {item.partition}"
        elif len(item.metadata) > metadata_max or len(item.metadata.encode()) > metadata_max:
            error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            text = f"expected metadata of at most {metadata_max} bytes (offset.metadata.max.bytes)"
        elif self._shard.population.offsets >= settings.offsets_max and not group.offsets.holds(
            item.topic, item.partition
        ):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            text = f"expected fewer than {settings.offsets_max} offsets here (group.coordinator.offsets.max)"
        return OffsetCommitResult(item.topic, item.partition, error, text)

    # --- OffsetFetch --------------------------------------------------------------------------------

    def fetch(self, request: OffsetFetchGroup, *, require_stable: bool) -> OffsetFetchResult:
        """Return committed offsets; a missing group has none."""
        group = self._shard.groups.get(request.group_id)
        if group is None:
            nothing = () if request.all_partitions else tuple(_none_of(item) for item in request.partitions)
            return OffsetFetchResult(request.group_id, ErrorCode.NONE, nothing)
        if group.consumer is not None:
            error, text = fetch_fault(group.consumer, request.member_id, request.member_epoch)
            if error is not ErrorCode.NONE:
                return OffsetFetchResult(request.group_id, error, (), text)
        offsets = group.offsets
        names = (
            [(topic, partition) for topic, partition, _ in offsets.items()]
            if request.all_partitions
            else [(item.topic, item.partition) for item in request.partitions]
        )
        found: list[CommittedOffset] = []
        for topic, partition in names:
            value = offsets.get(topic, partition)
            if require_stable and offsets.is_pending(topic, partition):
                found.append(CommittedOffset(topic, partition, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            elif value is None:
                found.append(CommittedOffset(topic, partition, ErrorCode.NONE))
            else:
                found.append(
                    CommittedOffset(topic, partition, ErrorCode.NONE, value.offset, value.leader_epoch, value.metadata)
                )
        return OffsetFetchResult(request.group_id, ErrorCode.NONE, tuple(found))

    # --- OffsetDelete -------------------------------------------------------------------------------

    def delete(self, request: OffsetDeleteRequest, waiter: int, now: Moment) -> None:
        """Delete offsets of topics that the group is not subscribed to (KIP-496)."""
        shard = self._shard
        group = shard.groups.get(request.group_id)
        if group is None:
            shard.answer(waiter, OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND))
            return
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
            shard.answer(waiter, OffsetDeleteResponse(ErrorCode.NON_EMPTY_GROUP))
            return
        if not shard.can_append:
            shard.answer(waiter, OffsetDeleteResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        changes: list[OffsetChange] = []
        results: list[OffsetDeleteResult] = []
        for item in request.partitions:
            is_used = group.is_subscribed(item.topic)
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_used else ErrorCode.NONE
            results.append(OffsetDeleteResult(item.topic, item.partition, error))
            if not is_used and group.offsets.holds(item.topic, item.partition):
                changes.append((item.topic, item.partition, None))
        if not changes:
            shard.answer(waiter, OffsetDeleteResponse(ErrorCode.NONE, tuple(results)))
            return
        shard.counters.offset_deletions += len(changes)

        def answered(error: ErrorCode) -> Response:
            return OffsetDeleteResponse(error, tuple(results) if error is ErrorCode.NONE else ())

        self.change(group, changes, now, waiter, answered)

    # --- Writing ------------------------------------------------------------------------------------

    def change(
        self,
        group: Group,
        changes: list[OffsetChange],
        now: Moment,
        waiter: int | None = None,
        answered: Callable[[ErrorCode], Response] | None = None,
    ) -> None:
        """Write values and tombstones as one batch; ``answered`` converts the outcome to the answer for ``waiter``."""
        for topic, partition, _ in changes:
            group.offsets.began(topic, partition)
        records = [offset_record(group.group_id, *change) for change in changes]
        self._shard.append(records, _OffsetsAppend(self._shard, group, changes, waiter, answered), now)


class _OffsetsAppend:
    """A group's offsets are being written. After ``offsets.commit.timeout.ms``, the waiter learns that the outcome is
    unknown; the values still count once they are in the log."""

    __slots__ = ("_answered", "_changes", "_group", "_shard", "_waiter")

    def __init__(
        self,
        shard: ShardState,
        group: Group,
        changes: list[OffsetChange],
        waiter: int | None,
        answered: Callable[[ErrorCode], Response] | None,
    ) -> None:
        self._shard = shard
        self._group = group
        self._changes = changes
        self._waiter = waiter
        self._answered = answered

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        offsets = self._group.offsets
        for topic, partition, value in self._changes:
            if error is not ErrorCode.NONE:
                offsets.failed(topic, partition)
                continue
            offsets.ended(topic, partition, number, value)
            if value is None:
                self._shard.transactions.tombstone(self._group, topic, partition, number)
        self._tell(error)
        self._shard.forget_if_idle(self._group, now)

    def timed_out(self, now: Moment) -> None:
        self._tell(ErrorCode.REQUEST_TIMED_OUT)

    def abandoned(self, error: ErrorCode) -> None:
        self._tell(error)

    def _tell(self, error: ErrorCode) -> None:
        if self._waiter is not None and self._answered is not None:
            self._shard.answer(self._waiter, self._answered(offset_error(error)))
        self._waiter = None


def offset_record(group_id: str, topic: str, partition: int, value: OffsetCommitValue | None) -> CoordinatorRecord:
    return CoordinatorRecord(
        encode_offset_key(group_id, topic, partition), None if value is None else encode_offset_value(value)
    )


def commit_answer(request: OffsetCommitRequest, error: ErrorCode, error_message: str) -> OffsetCommitResponse:
    """Return the same error for each partition."""
    return OffsetCommitResponse(
        tuple(OffsetCommitResult(item.topic, item.partition, error, error_message) for item in request.partitions)
    )


def unless_failed(result: OffsetCommitResult, error: ErrorCode) -> OffsetCommitResult:
    """Return the result for one offset if the append of all ended with ``error``."""
    if result.error is not ErrorCode.NONE:
        return result
    return OffsetCommitResult(result.topic, result.partition, error)


def _none_of(item: GroupPartition) -> CommittedOffset:
    return CommittedOffset(item.topic, item.partition, ErrorCode.NONE)
