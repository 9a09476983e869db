"""Checks whether a member of a consumer group may commit or fetch offsets under the epoch that it reports. Pure.

Source: ``ConsumerGroup.validateOffsetCommit`` and ``validateOffsetFetch`` as of Kafka 4.3; KIP-1251.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.groups.state.consumer_group import ConsumerGroup
from tidelog.groups.state.topics import Topics
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import NO_MEMBER, OffsetCommitPartition

_FINE = (ErrorCode.NONE, "")


def commit_fault(
    group: ConsumerGroup,
    topics: Topics,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    partitions: Iterable[OffsetCommitPartition],
    *,
    in_transaction: bool = False,
) -> tuple[ErrorCode, str]:
    """Check a commit; to a classic member its epoch is its generation. An epoch other than the member's current one is
    valid from the one at which the partition was assigned: nobody else can have had it since. Without members, anybody
    may commit: an administrator."""
    if epoch < 0 and not group.members:
        return _FINE
    if in_transaction and epoch < 0 and member_id == NO_MEMBER and instance_id is None:
        return _FINE  # from a producer that does not know its group, as in the oldest version
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID, f"expected a member of the group, found {member_id!r}"
    current = group.current_of(member_id)
    if epoch == current.epoch:
        return _FINE
    stale = _stale(group, member_id, epoch)
    if epoch > current.epoch:
        return stale
    for at in partitions:
        shape = topics.shape(at.topic)
        if shape is None:
            return stale
        since = current.assigned.get(shape.topic_id, {}).get(at.partition)
        if since is None:
            since = current.pending.get(shape.topic_id, {}).get(at.partition)
        if since is None or epoch < since:
            return stale
    return _FINE


def fetch_fault(group: ConsumerGroup, member_id: str, epoch: int) -> tuple[ErrorCode, str]:
    """Check a fetch. A caller without an id may fetch: an administrator, or a node of release 0.1 on behalf of one."""
    if not member_id:
        return _FINE
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID, f"expected a member of the group, found {member_id!r}"
    return _FINE if epoch == group.current_of(member_id).epoch else _stale(group, member_id, epoch)


def _stale(group: ConsumerGroup, member_id: str, epoch: int) -> tuple[ErrorCode, str]:
    is_classic = group.members[member_id].classic is not None
    error = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
    return error, f"expected epoch {group.current_of(member_id).epoch} of member {member_id}, found {epoch}"
