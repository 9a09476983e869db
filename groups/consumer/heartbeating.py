"""ConsumerGroupHeartbeat: members join, move to their share, leave and are fenced.

Source: ``GroupMetadataManager.consumerGroupHeartbeat`` and what it calls (KIP-848). A group has at most one change on
its way to the log. Whatever arrives in the meantime waits, and is then decided and written together. So a decision is
based on the log, a refused append is undone record by record, and nobody learns of a change before it is committed.

A target assignment, or matching regular expressions, that takes more than ``group.coordinator.work.max`` is worked out
and written in portions, one each millisecond. While it is worked out, heartbeats are decided on what the log has; while
it is written, they wait.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import Final, Protocol

from tidelog.groups.consumer.asking import (
    Fault,
    answered,
    epoch_fault,
    is_whole,
    owned_of,
    request_fault,
    static_fault,
    updated,
    wants_otherwise,
)
from tidelog.groups.consumer.assigning import TargetWork, put_target
from tidelog.groups.consumer.change import Change
from tidelog.groups.consumer.classic_members import ClassicMembers
from tidelog.groups.consumer.converting import NotUpgradable, upgraded
from tidelog.groups.consumer.decided import Asked, Decided, Fenced, Joining, Look, MaySee, Request, Syncing, again
from tidelog.groups.consumer.deciding import Deciding
from tidelog.groups.consumer.regexes import RegexWork, put_regexes
from tidelog.groups.consumer.steps import Steps, Work
from tidelog.groups.consumer.timing import Timing
from tidelog.groups.state.consumer_group import (
    LEFT_FOR_A_WHILE,
    NOTHING,
    ConsumerGroup,
    ConsumerRecord,
    MemberState,
    only,
    written,
)
from tidelog.groups.state.group import Group
from tidelog.groups.state.group_offsets import Population
from tidelog.groups.state.shard_state import ShardState, TimerKey, TimerKind
from tidelog.groups.state.topics import Topics
from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.proto.calls.consumer_group_api import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.proto.calls.group_api import HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, SyncGroupRequest
from tidelog.proto.calls.request import Response
from tidelog.proto.logs.consumer_group_records import CURRENT, MEMBER, ConsumerKey

logger = logging.getLogger(__name__)

_DECISION_UNITS: Final = 40
"""Cost of a heartbeat (:data:`tidelog.groups.consumer.steps.Work`)."""
_CLASSIC_TIMERS: Final = (TimerKind.MEMBER_JOIN, TimerKind.MEMBER_SYNC)


class ClassicGroups(Protocol):
    """What conversions need of the classic protocol's side."""

    def withdraw(self, group: Group) -> None:
        """Tell members that wait to rejoin."""

    def resume(self, group: Group, now: Moment) -> None:
        """Go on as before :meth:`withdraw`."""

    def end_timers(self, group: Group) -> None:
        """The group is no longer classic."""

    def converted(self, group: Group, now: Moment) -> None:
        """The group is classic now, and rebalances."""


class Heartbeating:
    """Handles the consumer groups of one partition of ``__consumer_offsets``."""

    __slots__ = ("_classic_groups", "_classic_members", "_deciding", "_shard", "_timing")

    def __init__(self, shard: ShardState, classic_groups: ClassicGroups) -> None:
        self._shard = shard
        self._classic_groups = classic_groups
        self._timing = Timing(shard)
        self._deciding = Deciding(shard, self._timing)
        self._classic_members = ClassicMembers(shard, self._deciding, self._timing)

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, waiter: int, now: Moment, client_host: str, may_see: MaySee
    ) -> None:
        """Answer now if nothing changes, else once the change is committed. ``may_see``: the topics that the member may
        describe."""
        shard = self._shard
        fault = request_fault(request, shard.settings)
        group = shard.groups.get(request.group_id)
        records: list[ConsumerRecord] = []
        if fault is None:
            fault = self._group_fault(request, group)
        if fault is None and group is not None and group.consumer is None and group.state is not GroupState.EMPTY:
            fault, records = self._upgrade_records(group)
        if fault is None and group is None:
            group = shard.new_group(request.group_id, now)
            if group is None:
                text = f"expected fewer than {shard.settings.groups_max} groups here (group.coordinator.groups.max)"
                fault = ErrorCode.COORDINATOR_NOT_AVAILABLE, text
        if fault is not None:
            shard.answer(waiter, ConsumerGroupHeartbeatResponse(*fault))
            return
        assert group is not None
        if group.consumer is None:
            for member_id in list(group.pending_joins):
                group.remove_pending(member_id)
                shard.end_session(group, member_id)
            group.consumer = ConsumerGroup(group.group_id, shard.population)
            if records:
                self._upgrade(group, records, now)
        self._ask(group, group.consumer, Asked(request, waiter, client_host, may_see), now)

    def join(self, group: Group, request: JoinGroupRequest, waiter: int, now: Moment, client_host: str) -> None:
        """Handle a JoinGroup to a group that has members of the consumer protocol, or had them a moment ago."""
        assert group.consumer is not None
        self._ask(group, group.consumer, Joining(request, waiter, client_host), now)

    def sync(self, group: Group, request: SyncGroupRequest, waiter: int, now: Moment) -> None:
        assert group.consumer is not None
        self._ask(group, group.consumer, Syncing(request, waiter), now)

    def classic_heartbeat(self, group: Group, request: HeartbeatRequest, now: Moment) -> HeartbeatResponse:
        assert group.consumer is not None
        return self._classic_members.heartbeat(group.consumer, request, now)

    def _ask(self, group: Group, consumer: ConsumerGroup, asked: Request, now: Moment) -> None:
        """Decide now, or after what is on its way to the log."""
        if not self._shard.can_append or len(consumer.queue) >= self._shard.settings.appends_max:
            self._shard.answer(asked.waiter, asked.refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        consumer.queue.append(asked)
        if not consumer.busy:
            self.go_on(group, now)

    def _group_fault(self, request: ConsumerGroupHeartbeatRequest, group: Group | None) -> Fault | None:
        settings = self._shard.settings
        if (group is None or group.consumer is None) and request.member_epoch != JOIN_EPOCH:
            return _unknown(request.member_id)
        waiting = 0 if group is None or group.consumer is None else len(group.consumer.queue)
        if not self._shard.can_append or waiting >= settings.appends_max:
            text = f"expected fewer than {settings.appends_max} appends under way (group.coordinator.appends.max)"
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, text
        return None

    def _upgrade_records(self, group: Group) -> tuple[Fault | None, list[ConsumerRecord]]:
        """Return the records that convert a classic group with members, or why it must stay one."""
        shard, room = self._shard, len(group.members)
        try:
            records = upgraded(group, shard.settings, shard.topics())
        except NotUpgradable as found:
            logger.info("group %s stays a classic group: %s", group.group_id, found)
            return (ErrorCode.GROUP_ID_NOT_FOUND, str(found)), []
        most = shard.settings.consumer_max_size
        if room >= most:
            text = f"expected fewer than {most} members (group.consumer.max.size), found {room} of the classic protocol"
            return (ErrorCode.GROUP_MAX_SIZE_REACHED, text), []
        written_records = [shard.group_tombstone(group), *(written(*record) for record in records)]
        if not Change(ConsumerGroup(group.group_id, Population())).has_room_for(written_records, shard.batch_bytes_max):
            text = (
                f"expected the {room} classic members of group {group.group_id} to fit into one batch: stop them first"
            )
            return (ErrorCode.GROUP_ID_NOT_FOUND, text), []
        return None, records

    def _upgrade(self, group: Group, records: list[ConsumerRecord], now: Moment) -> None:
        """Convert a classic group with members, in one batch. What the group was stays until that is in the log.
        Members that wait are told to rejoin (``convertToConsumerGroup``)."""
        assert group.consumer is not None
        logger.info("group %s: %d classic members get the consumer protocol", group.group_id, len(group.members))
        self._classic_groups.withdraw(group)
        change = Change(group.consumer)
        for key, value in records:
            change.put(key, value)
        Decided(self, self._shard, group, change, []).append(now)

    def upgraded(self, group: Group, now: Moment) -> None:
        """The conversion is in the log."""
        consumer = group.consumer
        assert consumer is not None
        self._classic_groups.end_timers(group)
        for member_id in consumer.members:
            self._timing.restart_session(consumer, member_id, now)

    def downgraded(self, group: Group, classic: Group, now: Moment) -> None:
        """The group's record as a classic one is in the log: its members have to agree on an assignment now."""
        group.consumer, group.is_consumer_stored = None, False
        group.adopt(classic)
        logger.info("group %s: %d members are classic again", group.group_id, len(group.members))
        self._classic_groups.converted(group, now)

    # --- Time -----------------------------------------------------------------------------------------

    def timer(self, key: TimerKey, now: Moment) -> None:
        """Handle a member that was silent, or did not give up partitions, for too long."""
        group = self._shard.groups.get(key.group_id)
        if group is None or group.consumer is None or key.member_id not in group.consumer.members:
            return
        if not self._shard.can_append:
            self._shard.timers.set(key, now.monotonic_ms + self._shard.settings.offsets_commit_timeout_ms)
            return
        group.consumer.queue.append(Fenced(key.member_id, key.kind))
        if not group.consumer.busy:
            self.go_on(group, now)

    def loaded(self, group: Group, now: Moment) -> None:
        """Start after the group came from the log: every member gets a whole session, and the whole time for
        revocation."""
        assert group.consumer is not None
        for member_id in group.consumer.members:
            self._timing.restart_session(group.consumer, member_id, now)
            self._timing.watch_revocation(group.consumer, member_id, NOTHING, now)

    # --- Writing --------------------------------------------------------------------------------------

    def go_on(self, group: Group, now: Moment) -> None:
        """Decide what waits, as far as one turn allows, and write the result."""
        consumer = group.consumer
        assert consumer is not None
        if self._write_result(group, consumer, now):
            return
        topics = self._shard.topics()
        change = Change(consumer)
        answers: list[tuple[Request, Response]] = []
        bytes_max, work_max = self._shard.batch_bytes_max // 2, self._shard.settings.work_max
        while consumer.queue and change.spent < work_max and change.bytes < bytes_max and change.classic is None:
            change.spent += _DECISION_UNITS
            match consumer.queue.popleft():
                case Asked() as asked:
                    answers.append((asked, self._decide(change, asked, topics, now)))
                case Joining() as asked:
                    answers.append((asked, self._classic_members.join(change, asked, topics, now)))
                case Syncing() as asked:
                    answers.append((asked, self._classic_members.sync(change, asked, topics, now)))
                case Look():
                    self._look(change, topics, now)
                case Fenced(member_id, why):
                    self._time_is_over(change, member_id, why, topics, now)
        pending = Decided(self, self._shard, group, change, answers)
        pending.append(now)
        if not consumer.busy:
            pending.tell(ErrorCode.NONE)
            if consumer.queue:
                self._timing.rest(consumer, now)
            else:
                self.settle(group, now)

    def _write_result(self, group: Group, consumer: ConsumerGroup, now: Moment) -> bool:
        """Begin to write what has been worked out. Nothing else is decided until all of it is written."""
        if consumer.work is None or not consumer.work.steps.is_done:
            return False
        work, consumer.work = consumer.work, None
        if isinstance(work, TargetWork) and work.epoch <= consumer.assignment_epoch:
            return False  # the group has been empty, or another target overtook it
        change = Change(consumer)
        pending = Decided(self, self._shard, group, change, [], is_open=True)
        consumer.writing = pending, Steps(self._written(change, work, now))
        self._write_on(group, consumer, now)
        return True

    def _written(self, change: Change, work: TargetWork | RegexWork, now: Moment) -> Work[None]:
        if isinstance(work, TargetWork):
            yield from put_target(change, work, now.wall_ms)
            self._shard.counters.completed_rebalances += 1
        elif (yield from put_regexes(change, work)):
            self._deciding.bump_if_needed(change, self._shard.topics(), is_wanted=True)

    def _write_on(self, group: Group, consumer: ConsumerGroup, now: Moment) -> None:
        """Write the next portion of a result."""
        pending, steps = consumer.writing
        if steps.advance(self._shard.settings.work_max):
            pending.close()
        else:
            self._timing.rest(consumer, now)
        pending.append(now)
        if not consumer.busy:
            pending.finish(now)

    def work_timer(self, group_id: str, now: Moment) -> None:
        """Do the next portion of a group's work."""
        group = self._shard.groups.get(group_id)
        consumer = None if group is None else group.consumer
        if group is None or consumer is None:
            return
        if consumer.writing is not None:
            self._write_on(group, consumer, now)
        elif consumer.work is not None and not consumer.work.steps.advance(self._shard.settings.work_max):
            self._timing.rest(consumer, now)
        elif not consumer.busy:
            self.go_on(group, now)

    def settle(self, group: Group, now: Moment) -> None:
        """Remove a group that has become empty of content."""
        consumer = group.consumer
        if consumer is not None and not (consumer.members or consumer.epoch or consumer.busy or consumer.queue):
            group.consumer = None
            self._shard.forget_if_idle(group, now)

    # --- Deciding -------------------------------------------------------------------------------------

    def _decide(self, change: Change, asked: Asked, topics: Topics, now: Moment) -> ConsumerGroupHeartbeatResponse:
        request, consumer = asked.request, change.group
        if request.member_epoch < 0:
            return self._leave(change, request, topics, now)
        member_id = request.member_id or str(uuid.UUID(int=self._shard.rng.getrandbits(128), version=4))
        fault = self._member_fault(consumer, request, member_id)
        if fault is not None:
            return ConsumerGroupHeartbeatResponse(*fault)
        if request.member_epoch == JOIN_EPOCH and request.instance_id is not None:
            self._deciding.take_over(change, request.instance_id, member_id)
        known = consumer.members.get(member_id)
        member = updated(known, request, asked.client_host)
        if member != known:
            change.put(ConsumerKey(MEMBER, consumer.group_id, member_id), member)
        resolved = self._deciding.resolve(change, topics, asked.may_see, now)
        self._deciding.bump_if_needed(change, topics, is_wanted=resolved or wants_otherwise(known, member))
        self._deciding.assign_if_needed(change, topics, now)
        before = consumer.current_of(member_id)
        owned = None if request.owned is None else owned_of(request.owned)
        after = self._deciding.reconcile(change, member_id, member, owned, topics)
        self._timing.restart_session(consumer, member_id, now)
        self._timing.watch_revocation(consumer, member_id, before, now)
        is_told = is_whole(request) or (after is not before and only(after.assigned) != only(before.assigned))
        return ConsumerGroupHeartbeatResponse(
            ErrorCode.NONE,
            member_id=member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._shard.settings.consumer_times(consumer.group_id).heartbeat_interval_ms,
            assignment=answered(after.assigned) if is_told else None,
        )

    def _member_fault(
        self, consumer: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str
    ) -> Fault | None:
        """Check whether the member may continue, or join."""
        is_join = request.member_epoch == JOIN_EPOCH
        holder = consumer.static_members.get(request.instance_id) if request.instance_id is not None else None
        if is_join and holder is not None and holder != member_id:
            is_live = consumer.current_of(holder).epoch != LEFT_FOR_A_WHILE
            if is_live and consumer.members[holder].classic is None:
                text = f"instance id {request.instance_id!r} is in use by member {holder}: stop it first"
                return ErrorCode.UNRELEASED_INSTANCE_ID, text
            return None
        if not is_join:
            fault = static_fault(consumer, member_id, request.instance_id)
            if fault is not None:
                return fault
        if member_id in consumer.members:
            return epoch_fault(member_id, consumer.current_of(member_id), request)
        if not is_join:
            return _unknown(member_id)
        return self._deciding.room_fault(consumer)

    # --- Leaving --------------------------------------------------------------------------------------

    def _leave(
        self, change: Change, request: ConsumerGroupHeartbeatRequest, topics: Topics, now: Moment
    ) -> ConsumerGroupHeartbeatResponse:
        """Handle leaving. -1: the member goes. -2: a static member keeps its place for a session timeout."""
        consumer, member_id = change.group, request.member_id
        fault = static_fault(consumer, member_id, request.instance_id)
        if fault is None and member_id not in consumer.members:
            fault = _unknown(member_id)
        if fault is not None:
            return ConsumerGroupHeartbeatResponse(*fault)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            current = consumer.current_of(member_id)
            left = replace(current, epoch=LEFT_FOR_A_WHILE, state=int(MemberState.STABLE), pending={})
            change.put(ConsumerKey(CURRENT, consumer.group_id, member_id), left)
            self._timing.end_revocation(consumer, member_id)
        else:
            self._deciding.fence(change, member_id, topics, now)
        return ConsumerGroupHeartbeatResponse(ErrorCode.NONE, member_id=member_id, member_epoch=request.member_epoch)

    def _look(self, change: Change, topics: Topics, now: Moment) -> None:
        if change.group.members:
            self._deciding.bump_if_needed(change, topics, is_wanted=False)
            self._deciding.assign_if_needed(change, topics, now)

    def _time_is_over(self, change: Change, member_id: str, why: TimerKind, topics: Topics, now: Moment) -> None:
        """Fence a member, unless it was heard from while this waited."""
        consumer = change.group
        key = TimerKey(why, consumer.group_id, member_id)
        if member_id not in consumer.members or key in self._shard.timers:
            return
        if why is TimerKind.REVOCATION and consumer.current_of(member_id).state != MemberState.UNREVOKED_PARTITIONS:
            return
        if why in _CLASSIC_TIMERS and consumer.members[member_id].classic is None:
            return
        logger.info("group %s: member %s is fenced (%s)", consumer.group_id, member_id, why.name.lower())
        self._shard.counters.expired_sessions += 1
        self._deciding.fence(change, member_id, topics, now)

    def refused(self, group: Group, change: Change, now: Moment, *, is_partial: bool) -> None:
        """Undo a change that the log has not accepted, or only in part."""
        consumer = change.group
        change.undo()
        consumer.work = None  # it may have begun with what is undone
        consumer.metadata_version = consumer.regex_version = -1
        consumer.whole_target = consumer.whole_target or is_partial
        for member_id in consumer.members:
            if not self._timing.has_session(consumer, member_id):
                self._timing.restart_session(consumer, member_id, now)
            self._timing.watch_revocation(consumer, member_id, NOTHING, now)
        if group.members:  # it stays a classic group
            again(self._shard, consumer)
            consumer.queue.clear()
            group.consumer = None
            self._classic_groups.resume(group, now)


def _unknown(member_id: str) -> Fault:
    return ErrorCode.UNKNOWN_MEMBER_ID, f"expected a member of the group, found {member_id!r}: join with epoch 0"
