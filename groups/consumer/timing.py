"""The timers of a consumer group's members."""

from __future__ import annotations

from typing import Final

from tidelog.groups.state.consumer_group import ConsumerGroup, MemberState
from tidelog.groups.state.shard_state import ShardState, TimerKey, TimerKind
from tidelog.model.moment import Moment
from tidelog.proto.logs.consumer_group_records import CurrentAssignment

_PAUSE_MS: Final = 1
"""Time between two portions of work, for other requests."""


class Timing:
    """Sets and cancels them. A member of the consumer protocol has a session and, while it gives partitions up, the
    time for that. One of the classic protocol has the session that it asked for, and its rebalance timeout twice: from
    the heartbeat that calls it back until it joins, and from there until it syncs."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard

    def restart_session(self, consumer: ConsumerGroup, member_id: str, now: Moment) -> None:
        """Restart the session of a member that was heard from."""
        member = consumer.members.get(member_id)
        if member is not None and member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self._shard.settings.consumer_times(consumer.group_id).session_timeout_ms
        self._set(TimerKind.MEMBER_SESSION, consumer, member_id, now.monotonic_ms + timeout_ms)

    def has_session(self, consumer: ConsumerGroup, member_id: str) -> bool:
        return TimerKey(TimerKind.MEMBER_SESSION, consumer.group_id, member_id) in self._shard.timers

    def watch_revocation(self, consumer: ConsumerGroup, member_id: str, before: CurrentAssignment, now: Moment) -> None:
        """Start the rebalance timeout of a member that begins to give up partitions."""
        current = consumer.current_of(member_id)
        member = consumer.members[member_id]
        if current.state != MemberState.UNREVOKED_PARTITIONS or member.classic is not None:
            self.end_revocation(consumer, member_id)
        elif before.state != MemberState.UNREVOKED_PARTITIONS or before.pending != current.pending:
            self._set(TimerKind.REVOCATION, consumer, member_id, now.monotonic_ms + member.rebalance_timeout_ms)

    def end_revocation(self, consumer: ConsumerGroup, member_id: str) -> None:
        self._shard.timers.cancel(TimerKey(TimerKind.REVOCATION, consumer.group_id, member_id))

    def call_back(self, consumer: ConsumerGroup, member_id: str, now: Moment) -> None:
        """Give a classic member that is told to rejoin its rebalance timeout, unless it already runs."""
        if TimerKey(TimerKind.MEMBER_JOIN, consumer.group_id, member_id) not in self._shard.timers:
            timeout_ms = consumer.members[member_id].rebalance_timeout_ms
            self._set(TimerKind.MEMBER_JOIN, consumer, member_id, now.monotonic_ms + timeout_ms)

    def joined(self, consumer: ConsumerGroup, member_id: str, now: Moment) -> None:
        """A classic member has joined; now it has to sync."""
        self._shard.timers.cancel(TimerKey(TimerKind.MEMBER_JOIN, consumer.group_id, member_id))
        timeout_ms = consumer.members[member_id].rebalance_timeout_ms
        self._set(TimerKind.MEMBER_SYNC, consumer, member_id, now.monotonic_ms + timeout_ms)

    def synced(self, consumer: ConsumerGroup, member_id: str) -> None:
        self._shard.timers.cancel(TimerKey(TimerKind.MEMBER_SYNC, consumer.group_id, member_id))

    def end(self, consumer: ConsumerGroup, member_id: str) -> None:
        """The member is gone."""
        for kind in (TimerKind.MEMBER_SESSION, TimerKind.REVOCATION, TimerKind.MEMBER_JOIN, TimerKind.MEMBER_SYNC):
            self._shard.timers.cancel(TimerKey(kind, consumer.group_id, member_id))

    def rest(self, consumer: ConsumerGroup, now: Moment) -> None:
        """Go on with the group after a pause."""
        self._shard.timers.set(TimerKey(TimerKind.WORK, consumer.group_id), now.monotonic_ms + _PAUSE_MS)

    def _set(self, kind: TimerKind, consumer: ConsumerGroup, member_id: str, deadline_ms: int) -> None:
        self._shard.timers.set(TimerKey(kind, consumer.group_id, member_id), deadline_ms)
