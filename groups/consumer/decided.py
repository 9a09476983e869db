"""What a consumer group has to decide, and its decisions on their way to the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from tidelog.groups.consumer.change import Change
from tidelog.groups.state.consumer_group import ConsumerGroup
from tidelog.groups.state.group import Group
from tidelog.groups.state.shard_state import ShardState, TimerKind
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from tidelog.proto.calls.group_api import (
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.calls.request import Response
from tidelog.replication.coordinators.coordinator_core import append_error

MaySee: TypeAlias = Callable[[str], bool]


class Asked(NamedTuple):
    """A heartbeat of the consumer protocol."""

    request: ConsumerGroupHeartbeatRequest
    waiter: int
    client_host: str
    may_see: MaySee

    def refused(self, error: ErrorCode) -> Response:
        return ConsumerGroupHeartbeatResponse(error)

    def again(self) -> Response:
        return self.refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Joining(NamedTuple):
    """A JoinGroup."""

    request: JoinGroupRequest
    waiter: int
    client_host: str

    def refused(self, error: ErrorCode) -> JoinGroupResponse:
        return JoinGroupResponse(error, member_id=self.request.member_id)

    def again(self) -> JoinGroupResponse:
        return self.refused(ErrorCode.REBALANCE_IN_PROGRESS)


class Syncing(NamedTuple):
    """A SyncGroup."""

    request: SyncGroupRequest
    waiter: int

    def refused(self, error: ErrorCode) -> Response:
        return SyncGroupResponse(error)

    def again(self) -> Response:
        return self.refused(ErrorCode.REBALANCE_IN_PROGRESS)


Request: TypeAlias = Asked | Joining | Syncing
"""Each knows the answer for an error, and the one after which its client asks again at once."""


class Look(NamedTuple):
    """The group's topics may have changed, or it needs a target."""


class Fenced(NamedTuple):
    """A member whose time is up; ``why``: the timer that said so."""

    member_id: str
    why: TimerKind


class Decider(Protocol):
    """Goes on when decisions are in the log, or are not."""

    def go_on(self, group: Group, now: Moment) -> None: ...

    def settle(self, group: Group, now: Moment) -> None: ...

    def refused(self, group: Group, change: Change, now: Moment, *, is_partial: bool) -> None: ...

    def upgraded(self, group: Group, now: Moment) -> None: ...

    def downgraded(self, group: Group, classic: Group, now: Moment) -> None: ...


class Decided:
    """Decisions being written to the log, in one batch or, beyond its size, in several. While it is *open*, more of it
    follows. After ``offsets.commit.timeout.ms``, waiters learn that the outcome is unknown."""

    __slots__ = ("_answers", "_appends", "_change", "_decider", "_error", "_group", "_is_open", "_left", "_shard")

    def __init__(
        self,
        decider: Decider,
        shard: ShardState,
        group: Group,
        change: Change,
        answers: list[tuple[Request, Response]],
        *,
        is_open: bool = False,
    ) -> None:
        self._decider = decider
        self._shard = shard
        self._group = group
        self._change = change
        self._answers = answers
        self._appends = self._left = 0
        self._error = ErrorCode.NONE
        self._is_open = is_open
        change.group.busy += is_open

    def append(self, now: Moment) -> None:
        """Write what the change has got since the last time."""
        group, consumer = self._group, self._change.group
        for records in self._change.take(self._shard.batch_bytes_max):
            if group.has_classic_record and not self._appends:
                records.insert(0, self._shard.group_tombstone(group))
            self._appends += 1
            self._left += 1
            consumer.busy += 1
            group.record_number = self._shard.append(records, self, now)

    def close(self) -> None:
        """Nothing more follows."""
        self._is_open = False
        self._change.group.writing = None
        self._change.group.busy -= 1

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        self._change.group.busy -= 1
        self._left -= 1
        self._error = self._error or error
        if self._is_open and self._error:
            self.close()
        if not self._left and not self._is_open:
            self.finish(now)

    def finish(self, now: Moment) -> None:
        """Everything is written, or something is not."""
        consumer = self._change.group
        if self._error is not ErrorCode.NONE:
            self._decider.refused(self._group, self._change, now, is_partial=self._appends > 1)
        elif self._change.classic is not None:
            self.tell(ErrorCode.NONE)
            again(self._shard, consumer)
            self._decider.downgraded(self._group, self._change.classic, now)
            return
        else:
            consumer.whole_target = consumer.whole_target and not self._change.has_target
            if self._group.members:
                self._decider.upgraded(self._group, now)
            self._group.become_simple()
            self._group.is_consumer_stored = True
        self.tell(append_error(self._error))
        if consumer.queue or consumer.work is not None:
            self._decider.go_on(self._group, now)
        else:
            self._decider.settle(self._group, now)

    def timed_out(self, now: Moment) -> None:
        error = append_error(ErrorCode.REQUEST_TIMED_OUT)
        self.tell(error)
        refuse_waiting(self._shard, self._change.group, error)

    def abandoned(self, error: ErrorCode) -> None:
        self.tell(error)
        refuse_waiting(self._shard, self._change.group, error)

    def tell(self, error: ErrorCode) -> None:
        answers, self._answers = self._answers, []
        for asked, response in answers:
            self._shard.answer(asked.waiter, response if error is ErrorCode.NONE else asked.refused(error))


def refuse_waiting(shard: ShardState, consumer: ConsumerGroup, error: ErrorCode) -> None:
    """Answer those whose request has not been processed; fences stay."""
    for asked in _requests(consumer):
        shard.answer(asked.waiter, asked.refused(error))


def again(shard: ShardState, consumer: ConsumerGroup) -> None:
    """Have those ask again whose request has not been processed."""
    for asked in _requests(consumer):
        shard.answer(asked.waiter, asked.again())


def _requests(consumer: ConsumerGroup) -> list[Request]:
    """Take the requests out of the queue."""
    found = [each for each in consumer.queue if isinstance(each, Asked | Joining | Syncing)]
    others = [each for each in consumer.queue if not isinstance(each, Asked | Joining | Syncing)]
    consumer.queue.clear()
    consumer.queue.extend(others)
    return found
