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
from typing import Any, Final

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
from tidelog.groups.consumer.assigning import TargetWork, preferred, put_target
from tidelog.groups.consumer.change import Change
from tidelog.groups.consumer.decided import Asked, Decided, Fenced, MaySee
from tidelog.groups.consumer.reconciling import Subscribed, next_step
from tidelog.groups.consumer.regexes import RegexWork, put_regexes
from tidelog.groups.consumer.steps import Steps, Work, whole
from tidelog.groups.state.consumer_group import LEFT_FOR_A_WHILE, NOTHING, ConsumerGroup, MemberState, only
from tidelog.groups.state.group import Group
from tidelog.groups.state.shard_state import ShardState, TimerKey, TimerKind
from tidelog.groups.state.topics import Topics, metadata_hash
from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.proto.calls.consumer_group_api import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.proto.logs.consumer_group_records import (
    CURRENT,
    GROUP,
    MEMBER,
    REGEX,
    TARGET,
    TARGET_EPOCH,
    ConsumerKey,
    CurrentAssignment,
    GroupEpoch,
    MemberSubscription,
    Target,
    TargetEpoch,
)

logger = logging.getLogger(__name__)

_REGEX_PAUSE_MS: Final = 10_000
"""Minimum time between checks whether new topics match."""
_DECISION_UNITS: Final = 40
"""Cost of a heartbeat (:data:`tidelog.groups.consumer.steps.Work`)."""
_PAUSE_MS: Final = 1
"""Time between two portions, for other requests."""


class Heartbeating:
    """Handles the consumer groups of one partition of ``__consumer_offsets``."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, waiter: int, now: Moment, client_host: str, may_see: MaySee
    ) -> None:
        """Answer now if nothing changes, else once the change is committed. ``may_see``: the topics that the member may
        describe."""
        shard = self._shard
        fault = request_fault(request, shard.settings)
        group = shard.groups.get(request.group_id)
        if fault is None:
            fault = self._group_fault(request, group)
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
        group.consumer.queue.append(Asked(request, waiter, client_host, may_see))
        if not group.consumer.busy:
            self.go_on(group, now)

    def _group_fault(self, request: ConsumerGroupHeartbeatRequest, group: Group | None) -> Fault | None:
        settings = self._shard.settings
        if group is None or group.consumer is None:
            if group is not None and group.state is not GroupState.EMPTY:
                text = f"group {request.group_id} has members of the classic protocol: stop them first"
                return ErrorCode.GROUP_ID_NOT_FOUND, text
            if request.member_epoch != JOIN_EPOCH:
                return _unknown(request.member_id)
        waiting = 0 if group is None or group.consumer is None else len(group.consumer.queue)
        if not self._shard.can_append or waiting >= settings.appends_max:
            text = f"expected fewer than {settings.appends_max} appends under way (group.coordinator.appends.max)"
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, text
        return None

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
            self._restart_session(group, member_id, now)
            self._watch_revocation(group.consumer, member_id, NOTHING, now)

    def _restart_session(self, group: Group, member_id: str, now: Moment) -> None:
        key = TimerKey(TimerKind.MEMBER_SESSION, group.group_id, member_id)
        self._shard.timers.set(
            key, now.monotonic_ms + self._shard.settings.consumer_times(group.group_id).session_timeout_ms
        )

    def _watch_revocation(
        self, consumer: ConsumerGroup, member_id: str, before: CurrentAssignment, now: Moment
    ) -> None:
        """Start the rebalance timeout of a member that begins to give up partitions."""
        key = TimerKey(TimerKind.REVOCATION, consumer.group_id, member_id)
        current = consumer.current_of(member_id)
        if current.state != MemberState.UNREVOKED_PARTITIONS:
            self._shard.timers.cancel(key)
        elif before.state != MemberState.UNREVOKED_PARTITIONS or before.pending != current.pending:
            self._shard.timers.set(key, now.monotonic_ms + consumer.members[member_id].rebalance_timeout_ms)

    def _end_timers(self, consumer: ConsumerGroup, member_id: str) -> None:
        for kind in (TimerKind.MEMBER_SESSION, TimerKind.REVOCATION):
            self._shard.timers.cancel(TimerKey(kind, consumer.group_id, member_id))

    # --- Writing --------------------------------------------------------------------------------------

    def go_on(self, group: Group, now: Moment) -> None:
        """Decide what waits, as far as one turn allows, and write the result."""
        consumer = group.consumer
        assert consumer is not None
        if self._write_result(group, consumer, now):
            return
        topics = self._shard.topics()
        change = Change(consumer)
        answers: list[tuple[int, ConsumerGroupHeartbeatResponse]] = []
        bytes_max, work_max = self._shard.batch_bytes_max // 2, self._shard.settings.work_max
        while consumer.queue and change.spent < work_max and change.bytes < bytes_max:
            change.spent += _DECISION_UNITS
            match consumer.queue.popleft():
                case Asked() as asked:
                    answers.append((asked.waiter, self._decide(group, change, asked, topics, now)))
                case Fenced(member_id, why):
                    self._time_is_over(group, change, member_id, why, topics, now)
        pending = Decided(self, self._shard, group, change, answers)
        pending.append(now)
        if not consumer.busy:
            pending.tell(ErrorCode.NONE)
            if consumer.queue:
                self._rest(consumer, now)
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
            self._bump_if_needed(change, self._shard.topics(), is_wanted=True)

    def _write_on(self, group: Group, consumer: ConsumerGroup, now: Moment) -> None:
        """Write the next portion of a result."""
        pending, steps = consumer.writing
        if steps.advance(self._shard.settings.work_max):
            pending.close()
        else:
            self._rest(consumer, now)
        pending.append(now)
        if not consumer.busy:
            pending.finish(now)

    def _rest(self, consumer: ConsumerGroup, now: Moment) -> None:
        """Go on after a pause."""
        self._shard.timers.set(TimerKey(TimerKind.WORK, consumer.group_id), now.monotonic_ms + _PAUSE_MS)

    def work_timer(self, group_id: str, now: Moment) -> None:
        """Do the next portion of a group's work."""
        group = self._shard.groups.get(group_id)
        consumer = None if group is None else group.consumer
        if group is None or consumer is None:
            return
        if consumer.writing is not None:
            self._write_on(group, consumer, now)
        elif consumer.work is not None and not consumer.work.steps.advance(self._shard.settings.work_max):
            self._rest(consumer, now)
        elif not consumer.busy:
            self.go_on(group, now)

    def settle(self, group: Group, now: Moment) -> None:
        """Remove a group that has become empty of content."""
        consumer = group.consumer
        if consumer is not None and not (consumer.members or consumer.epoch or consumer.busy or consumer.queue):
            group.consumer = None
            self._shard.forget_if_idle(group, now)

    # --- Deciding -------------------------------------------------------------------------------------

    def _decide(
        self, group: Group, change: Change, asked: Asked, topics: Topics, now: Moment
    ) -> ConsumerGroupHeartbeatResponse:
        request, consumer = asked.request, change.group
        if request.member_epoch < 0:
            return self._leave(change, request, topics, now)
        member_id = request.member_id or str(uuid.UUID(int=self._shard.rng.getrandbits(128), version=4))
        fault = self._member_fault(consumer, request, member_id)
        if fault is not None:
            return ConsumerGroupHeartbeatResponse(*fault)
        if request.member_epoch == JOIN_EPOCH and request.instance_id is not None:
            self._take_over(change, request.instance_id, member_id)
        known = consumer.members.get(member_id)
        member = updated(known, request, asked.client_host)
        if member != known:
            change.put(ConsumerKey(MEMBER, consumer.group_id, member_id), member)
        resolved = self._resolve(change, topics, asked.may_see, now)
        self._bump_if_needed(change, topics, is_wanted=resolved or wants_otherwise(known, member))
        if consumer.epoch > consumer.assignment_epoch:
            self._assign(change, topics, now)
        before = consumer.current_of(member_id)
        after = self._reconcile(change, member_id, member, request, topics)
        self._restart_session(group, member_id, now)
        self._watch_revocation(consumer, member_id, before, now)
        is_told = is_whole(request) or (after is not before and only(after.assigned) != only(before.assigned))
        return ConsumerGroupHeartbeatResponse(
            ErrorCode.NONE,
            member_id=member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._shard.settings.consumer_times(group.group_id).heartbeat_interval_ms,
            assignment=answered(after.assigned) if is_told else None,
        )

    def _member_fault(
        self, consumer: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str
    ) -> Fault | None:
        """Check whether the member may continue, or join."""
        is_join = request.member_epoch == JOIN_EPOCH
        holder = consumer.static_members.get(request.instance_id) if request.instance_id is not None else None
        if is_join and holder is not None and holder != member_id:
            if consumer.current_of(holder).epoch != LEFT_FOR_A_WHILE:
                text = f"instance id {request.instance_id!r} is in use by member {holder}: stop it first"
                return ErrorCode.UNRELEASED_INSTANCE_ID, text
            return None
        if not is_join:
            fault = static_fault(consumer, request)
            if fault is not None:
                return fault
        if member_id in consumer.members:
            return epoch_fault(member_id, consumer.current_of(member_id), request)
        if not is_join:
            return _unknown(member_id)
        settings = self._shard.settings
        most = settings.consumer_max_size
        if len(consumer.members) >= most:
            return ErrorCode.GROUP_MAX_SIZE_REACHED, f"expected fewer than {most} members (group.consumer.max.size)"
        if self._shard.population.members >= settings.members_max:
            text = f"expected fewer than {settings.members_max} members here (group.coordinator.members.max)"
            return ErrorCode.GROUP_MAX_SIZE_REACHED, text
        return None

    def _take_over(self, change: Change, instance_id: str, member_id: str) -> None:
        """Give a static member that came back under another id the place of the old one, with assignment and target.
        The epochs of its partitions start again (KIP-1251)."""
        consumer = change.group
        holder = consumer.static_members.get(instance_id)
        if holder is None or holder == member_id:
            return
        subscription, current, target = (
            consumer.members[holder],
            consumer.current_of(holder),
            consumer.target_of(holder),
        )
        self._remove(change, holder)
        assigned = {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in current.assigned.items()}
        change.put(ConsumerKey(MEMBER, consumer.group_id, member_id), subscription)
        change.put(ConsumerKey(TARGET, consumer.group_id, member_id), Target(target))
        moved = CurrentAssignment(0, 0, MemberState.STABLE, assigned, {})
        change.put(ConsumerKey(CURRENT, consumer.group_id, member_id), moved)
        logger.info("group %s: static member %s is now %s", consumer.group_id, instance_id, member_id)

    def _resolve(self, change: Change, topics: Topics, may_see: MaySee, now: Moment) -> bool:
        """Match the regular expressions in use against the topics. Returns whether their topics changed; if that takes
        long, it is known later."""
        consumer = change.group
        used = consumer.regex_users.keys()
        self._drop_regexes(change)
        is_due = topics.version != consumer.regex_version and now.monotonic_ms >= consumer.regex_ms + _REGEX_PAUSE_MS
        if not used or consumer.work is not None or not (is_due or used - consumer.regexes.keys()):
            return False
        consumer.regex_version, consumer.regex_ms = topics.version, now.monotonic_ms
        work = RegexWork(used, topics, may_see, now)
        return self._done_now(change, work.steps, work, now) and whole(put_regexes(change, work))

    def _drop_regexes(self, change: Change) -> None:
        """Forget regular expressions that no member uses."""
        for pattern in sorted(change.group.regexes.keys() - change.group.regex_users.keys()):
            change.put(ConsumerKey(REGEX, change.group.group_id, pattern), None)

    def _done_now(self, change: Change, steps: Steps[Any], work: TargetWork | RegexWork, now: Moment) -> bool:
        """Do the work if this turn has time for it. Otherwise, the next turns do the rest."""
        is_done = steps.advance(self._shard.settings.work_max - change.spent)
        change.spent += steps.spent
        if not is_done:
            change.group.work = work
            self._rest(change.group, now)
        return is_done

    def _bump_if_needed(self, change: Change, topics: Topics, *, is_wanted: bool) -> None:
        """Increase the group epoch if members or topics changed."""
        consumer = change.group
        if not is_wanted and topics.version == consumer.metadata_version:
            return
        consumer.metadata_version = topics.version
        found = metadata_hash(topics, consumer.subscribed_topics())
        if is_wanted or found != consumer.metadata_hash:
            change.put(ConsumerKey(GROUP, consumer.group_id), GroupEpoch(consumer.epoch + 1, found))

    def _assign(self, change: Change, topics: Topics, now: Moment) -> None:
        """Make a new target, unless one is being made, or the last one is too young (KIP-1263). A wall clock that was
        set back is no reason to wait."""
        consumer, settings = change.group, self._shard.settings
        interval_ms = settings.consumer_times(consumer.group_id).assignment_interval_ms
        is_young = consumer.assignment_ms and 0 <= now.wall_ms - consumer.assignment_ms < interval_ms
        if consumer.work is None and not is_young:
            work = TargetWork(consumer, topics, preferred(consumer, settings.consumer_assignors))
            if self._done_now(change, work.steps, work, now):
                whole(put_target(change, work, now.wall_ms))
                self._shard.counters.completed_rebalances += 1
        if not consumer.assignment_epoch:
            self._begin_empty(change)

    def _begin_empty(self, change: Change) -> None:
        """Give a new group a first target without partitions, as its members may not stay in epoch 0."""
        consumer = change.group
        change.put(ConsumerKey(TARGET_EPOCH, consumer.group_id), TargetEpoch(consumer.epoch))
        change.put(ConsumerKey(GROUP, consumer.group_id), GroupEpoch(consumer.epoch + 1, consumer.metadata_hash))
        if isinstance(consumer.work, TargetWork):
            consumer.work.epoch = consumer.epoch

    def _reconcile(
        self,
        change: Change,
        member_id: str,
        member: MemberSubscription,
        request: ConsumerGroupHeartbeatRequest,
        topics: Topics,
    ) -> CurrentAssignment:
        """Move the member one step on. Returns where it is now."""
        consumer = change.group
        after = next_step(
            member_id,
            consumer.current_of(member_id),
            consumer.assignment_epoch,
            consumer.target_of(member_id),
            None if request.owned is None else owned_of(request.owned),
            consumer.owner,
            Subscribed(topics, consumer.topics_of(member)),
        )
        if consumer.current.get(member_id) != after:
            change.put(ConsumerKey(CURRENT, consumer.group_id, member_id), after)
        return after

    # --- Leaving --------------------------------------------------------------------------------------

    def _leave(
        self, change: Change, request: ConsumerGroupHeartbeatRequest, topics: Topics, now: Moment
    ) -> ConsumerGroupHeartbeatResponse:
        """Handle leaving. -1: the member goes. -2: a static member keeps its place for a session timeout."""
        consumer, member_id = change.group, request.member_id
        fault = static_fault(consumer, request)
        if fault is None and member_id not in consumer.members:
            fault = _unknown(member_id)
        if fault is not None:
            return ConsumerGroupHeartbeatResponse(*fault)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            current = consumer.current_of(member_id)
            left = replace(current, epoch=LEFT_FOR_A_WHILE, state=int(MemberState.STABLE), pending={})
            change.put(ConsumerKey(CURRENT, consumer.group_id, member_id), left)
            self._shard.timers.cancel(TimerKey(TimerKind.REVOCATION, consumer.group_id, member_id))
        else:
            self._fence(change, member_id, topics)
        return ConsumerGroupHeartbeatResponse(ErrorCode.NONE, member_id=member_id, member_epoch=request.member_epoch)

    def _time_is_over(
        self, group: Group, change: Change, member_id: str, why: TimerKind, topics: Topics, now: Moment
    ) -> None:
        """Fence a member, unless it was heard from while this waited."""
        consumer = change.group
        key = TimerKey(why, consumer.group_id, member_id)
        if member_id not in consumer.members or key in self._shard.timers:
            return
        if why is TimerKind.REVOCATION and consumer.current_of(member_id).state != MemberState.UNREVOKED_PARTITIONS:
            return
        logger.info("group %s: member %s is fenced (%s)", consumer.group_id, member_id, why.name.lower())
        self._shard.counters.expired_sessions += 1
        self._fence(change, member_id, topics)

    def _fence(self, change: Change, member_id: str, topics: Topics) -> None:
        """Remove a member; its partitions become free. An emptied group has equal epochs (KAFKA-20442)."""
        consumer = change.group
        self._remove(change, member_id)
        self._drop_regexes(change)
        self._bump_if_needed(change, topics, is_wanted=True)
        if not consumer.members:
            change.put(ConsumerKey(TARGET_EPOCH, consumer.group_id), TargetEpoch(consumer.epoch))

    def _remove(self, change: Change, member_id: str) -> None:
        self._end_timers(change.group, member_id)
        for kind in (CURRENT, TARGET, MEMBER):
            change.put(ConsumerKey(kind, change.group.group_id, member_id), None)

    def refused(self, group: Group, change: Change, now: Moment, *, is_partial: bool) -> None:
        """Undo a change that the log has not accepted, or only in part."""
        consumer = change.group
        change.undo()
        consumer.work = None  # it may have begun with what is undone
        consumer.metadata_version = consumer.regex_version = -1
        consumer.whole_target = consumer.whole_target or is_partial
        for member_id in consumer.members:
            key = TimerKey(TimerKind.MEMBER_SESSION, consumer.group_id, member_id)
            if key not in self._shard.timers:
                self._restart_session(group, member_id, now)
            self._watch_revocation(consumer, member_id, NOTHING, now)


def _unknown(member_id: str) -> Fault:
    return ErrorCode.UNKNOWN_MEMBER_ID, f"expected a member of the group, found {member_id!r}: join with epoch 0"
