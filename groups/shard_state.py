"""What the decisions about one partition of ``__consumer_offsets`` share: its groups, timers and appends."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tidelog.groups.counters import GroupCounters
from tidelog.groups.effects import Answer, Append, AppendMarker, Effect, Writer
from tidelog.groups.group import Group
from tidelog.groups.group_offsets import Population
from tidelog.groups.member import Member
from tidelog.groups.open_transactions import OpenTransactions
from tidelog.groups.settings import GroupSettings
from tidelog.groups.transitions import Cause, GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch
from tidelog.model.moment import Moment
from tidelog.model.timers import Timers
from tidelog.proto.coordinator_records import CoordinatorRecord, encode_group_key, encode_group_value
from tidelog.proto.group_api import DeletedGroup
from tidelog.proto.request import Response
from tidelog.replication.coordinator_log import Token


class TimerKind(enum.IntEnum):
    SESSION = 0
    """A member, or a pending one, has to be heard of."""
    JOIN = 1
    """The join phase ends, whoever has not joined."""
    SYNC = 2
    """Who has not synced is dropped."""
    APPEND = 3
    """Who waits for an append is told that its outcome is unknown."""
    EXPIRY = 4
    """Offsets are looked over for what has expired."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""
    number: int = -1


EXPIRY_KEY: Final = TimerKey(TimerKind.EXPIRY)


class PendingAppend(Protocol):
    """What is to be done when an append ended."""

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        """NONE: it is in the log for good. Else nothing of it is."""

    def timed_out(self, now: Moment) -> None:
        """Whoever waits should not wait any longer; how it ends is still told by :meth:`ended`."""

    def abandoned(self, error: ErrorCode) -> None:
        """Nothing more will be told: leadership ended. Whoever waits is to be answered ``error``."""


class ShardState:
    """One writer's state; the modules that decide take it by turns."""

    __slots__ = (
        "_next_number",
        "appends",
        "batch_bytes_max",
        "counters",
        "effects",
        "groups",
        "leader_epoch",
        "population",
        "rng",
        "settings",
        "timers",
        "transactions",
    )

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        settings: GroupSettings,
        rng: random.Random,
        batch_bytes_max: int,
        counters: GroupCounters,
    ) -> None:
        self.counters = counters
        self.leader_epoch = leader_epoch
        self.settings = settings
        self.rng = rng
        self.batch_bytes_max = batch_bytes_max
        self.groups: dict[str, Group] = {}
        self.population = Population()
        self.transactions = OpenTransactions()
        self.timers: Timers[TimerKey] = Timers()
        self.effects: list[Effect] = []
        self.appends: dict[int, PendingAppend] = {}
        self._next_number = 0

    # --- Effects ------------------------------------------------------------------------------------

    def answer(self, waiter: int, response: Response | DeletedGroup | ErrorCode) -> None:
        self.effects.append(Answer(waiter, response))

    @property
    def can_append(self) -> bool:
        return len(self.appends) < self.settings.appends_max

    def append(
        self, records: Sequence[CoordinatorRecord], pending: PendingAppend, now: Moment, writer: Writer | None = None
    ) -> int:
        """Ask for an append; return its number."""
        token = self._begin(pending, now)
        self.effects.append(Append(token, tuple(records), now.wall_ms, writer))
        return token.number

    def append_marker(
        self, writer: Writer, coordinator_epoch: int, pending: PendingAppend, now: Moment, *, committed: bool
    ) -> None:
        """Ask for the marker that ends a transaction."""
        token = self._begin(pending, now)
        self.effects.append(AppendMarker(token, writer, coordinator_epoch, committed, now.wall_ms))

    def _begin(self, pending: PendingAppend, now: Moment) -> Token:
        number = self._next_number
        self._next_number += 1
        self.appends[number] = pending
        self.timers.set(
            TimerKey(TimerKind.APPEND, number=number), now.monotonic_ms + self.settings.offsets_commit_timeout_ms
        )
        return Token(self.leader_epoch, number)

    # --- Groups -------------------------------------------------------------------------------------

    def new_group(self, group_id: str, now: Moment) -> Group | None:
        """Begin a group; None where there are ``groups_max`` already."""
        if len(self.groups) >= self.settings.groups_max:
            return None
        group = self.groups[group_id] = Group(group_id, self.population, now.wall_ms)
        return group

    def forget_if_idle(self, group: Group, now: Moment) -> bool:
        """Drop a group that has nothing, not even a record; whether it is gone."""
        if not group.is_idle or group.record_number is not None:
            return False
        group.move(GroupState.DEAD, Cause.REMOVED, now.wall_ms)
        del self.groups[group.group_id]
        return True

    def group_record(self, group: Group, assignments: dict[str, bytes]) -> CoordinatorRecord:
        return CoordinatorRecord(encode_group_key(group.group_id), encode_group_value(group.stored(assignments)))

    # --- Sessions -----------------------------------------------------------------------------------

    def restart_session(self, group: Group, member: Member, now: Moment, timeout_ms: int | None = None) -> None:
        """The member was heard of."""
        self.timers.set(
            TimerKey(TimerKind.SESSION, group.group_id, member.member_id),
            now.monotonic_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms),
        )

    def end_session(self, group: Group, member_id: str) -> None:
        self.timers.cancel(TimerKey(TimerKind.SESSION, group.group_id, member_id))


class GroupRecordAppend:
    """An append of a group's record that nobody waits for. Source: ``completeClassicGroupJoin``, which only warns
    where the record of an empty generation could not be stored: there are no members that it would miss."""

    __slots__ = ()

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        pass

    def timed_out(self, now: Moment) -> None:
        pass

    def abandoned(self, error: ErrorCode) -> None:
        pass


def group_error(error: ErrorCode) -> ErrorCode:
    """The answer where a group's record could not be stored. Source: ``appendGroupMetadataErrorToResponseError``."""
    match error:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION | ErrorCode.NOT_ENOUGH_REPLICAS | ErrorCode.REQUEST_TIMED_OUT:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        case _:
            return error


def offset_error(error: ErrorCode) -> ErrorCode:
    """The answer where offsets could not be stored. Source: ``GroupCoordinatorService.handleOperationException``."""
    match error:
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case _:
            return group_error(error)
