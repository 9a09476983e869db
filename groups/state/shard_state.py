"""The state that all decisions about one partition of ``__consumer_offsets`` share: its groups, timers and appends."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from tidelog.groups.state.consumer_group import written
from tidelog.groups.state.counters import GroupCounters
from tidelog.groups.state.effects import Answer, Append, AppendMarker, Effect, Writer
from tidelog.groups.state.group import Group
from tidelog.groups.state.group_offsets import Population
from tidelog.groups.state.member import Member
from tidelog.groups.state.open_transactions import OpenTransactions
from tidelog.groups.state.settings import GroupSettings
from tidelog.groups.state.topics import NoTopics, Topics
from tidelog.groups.state.transitions import Cause, GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch
from tidelog.model.moment import Moment
from tidelog.proto.calls.group_api import DeletedGroup
from tidelog.proto.calls.request import Response
from tidelog.proto.logs.coordinator_records import CoordinatorRecord, encode_group_key, encode_group_value
from tidelog.replication.coordinators.coordinator_core import CoreState, append_error
from tidelog.replication.coordinators.coordinator_log import Token


class TimerKind(enum.IntEnum):
    SESSION = 0
    """A member, or a pending one, must have been heard from by then."""
    JOIN = 1
    """The join phase ends, even if some have not joined."""
    SYNC = 2
    """Drop members that have not synced."""
    EXPIRY = 3
    """Check offsets for expiry."""
    MEMBER_SESSION = 4
    """A member of a consumer group must have been heard from by then."""
    REVOCATION = 5
    """A member of a consumer group must have given partitions up by then."""
    WORK = 6
    """The next portion of a consumer group's work."""
    MEMBER_JOIN = 7
    """A classic member of a consumer group must have rejoined by then."""
    MEMBER_SYNC = 8
    """A classic member of a consumer group must have asked for its assignment by then."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


EXPIRY_KEY: Final = TimerKey(TimerKind.EXPIRY)


class PendingAppend(Protocol):
    """The steps to take when an append ends."""

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        """Handle the end. NONE: it is committed. Otherwise nothing of it is in the log."""

    def timed_out(self, now: Moment) -> None:
        """Stop its waiters from waiting any longer; :meth:`ended` still reports the outcome."""

    def abandoned(self, error: ErrorCode) -> None:
        """Answer the waiters with ``error``, because leadership ended, and no outcome will come."""


class ShardState(CoreState[TimerKey, Effect, PendingAppend]):
    """State with one writer; the deciding modules take turns."""

    __slots__ = ("counters", "groups", "population", "rng", "settings", "topics", "transactions")

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        settings: GroupSettings,
        rng: random.Random,
        batch_bytes_max: int,
        counters: GroupCounters,
        topics: Callable[[], Topics] = NoTopics,
    ) -> None:
        super().__init__(leader_epoch, batch_bytes_max)
        self.counters = counters
        self.settings = settings
        self.rng = rng
        self.topics = topics
        """The topics in the current metadata."""
        self.groups: dict[str, Group] = {}
        self.population = Population()
        self.transactions = OpenTransactions()

    # --- Effects ------------------------------------------------------------------------------------

    def answer(self, waiter: int, response: Response | DeletedGroup | ErrorCode) -> None:
        self.effects.append(Answer(waiter, response))

    @property
    def can_append(self) -> bool:
        return len(self.appends) < self.settings.appends_max

    def append(
        self, records: Sequence[CoordinatorRecord], pending: PendingAppend, now: Moment, writer: Writer | None = None
    ) -> int:
        """Request an append. Returns its number."""
        token = self._begin(pending, now)
        self.effects.append(Append(token, tuple(records), now.wall_ms, writer))
        return token.number

    def append_marker(
        self, writer: Writer, coordinator_epoch: int, pending: PendingAppend, now: Moment, *, committed: bool
    ) -> None:
        """Request the marker that ends a transaction."""
        token = self._begin(pending, now)
        self.effects.append(AppendMarker(token, writer, coordinator_epoch, committed, now.wall_ms))

    def _begin(self, pending: PendingAppend, now: Moment) -> Token:
        return self.begin_append(pending, now.monotonic_ms + self.settings.offsets_commit_timeout_ms)

    # --- Groups -------------------------------------------------------------------------------------

    def new_group(self, group_id: str, now: Moment) -> Group | None:
        """Create a group; None if there are already ``groups_max``."""
        if len(self.groups) >= self.settings.groups_max:
            return None
        group = self.groups[group_id] = Group(group_id, self.population, now.wall_ms)
        return group

    def forget_if_idle(self, group: Group, now: Moment) -> bool:
        """Drop a group that has nothing, not even a record. Returns whether it is gone."""
        if not group.is_idle or group.record_number is not None:
            return False
        group.move(GroupState.DEAD, Cause.REMOVED, now.wall_ms)
        del self.groups[group.group_id]
        return True

    def group_record(self, group: Group, assignments: dict[str, bytes]) -> CoordinatorRecord:
        return CoordinatorRecord(encode_group_key(group.group_id), encode_group_value(group.stored(assignments)))

    def group_records(self, group: Group, assignments: dict[str, bytes]) -> list[CoordinatorRecord]:
        """Return a classic group's record, and the tombstones of what is left from before it was classic."""
        return [*(written(key, None) for key in group.leftovers), self.group_record(group, assignments)]

    def group_tombstone(self, group: Group) -> CoordinatorRecord:
        """Return the tombstone of a classic group's record."""
        return CoordinatorRecord(encode_group_key(group.group_id), None)

    def tombstones(self, group: Group) -> list[CoordinatorRecord]:
        """Return the tombstones of the group's own records."""
        if group.record_number is None:
            return []
        classic = [] if group.is_consumer_stored else [self.group_tombstone(group)]
        keys = group.leftovers if group.consumer is None else group.consumer.record_keys()
        return classic + [written(key, None) for key in keys]

    # --- Sessions -----------------------------------------------------------------------------------

    def restart_session(self, group: Group, member: Member, now: Moment, timeout_ms: int | None = None) -> None:
        """Restart the session of a member that was heard from."""
        self.timers.set(
            TimerKey(TimerKind.SESSION, group.group_id, member.member_id),
            now.monotonic_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms),
        )

    def end_session(self, group: Group, member_id: str) -> None:
        self.timers.cancel(TimerKey(TimerKind.SESSION, group.group_id, member_id))


class GroupRecordAppend:
    """An append of a group's record that nobody waits for. Source: ``completeClassicGroupJoin``, which only warns if
    the record of an empty generation could not be stored: there are no members to miss it."""

    __slots__ = ()

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        pass

    def timed_out(self, now: Moment) -> None:
        pass

    def abandoned(self, error: ErrorCode) -> None:
        pass


def offset_error(error: ErrorCode) -> ErrorCode:
    """Return the answer if offsets could not be stored. Source:
    ``GroupCoordinatorService.handleOperationException``."""
    match error:
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case _:
            return append_error(error)
