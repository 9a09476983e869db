"""The steps that decisions about the members of a consumer group share, whichever protocol the members speak.

Source: ``GroupMetadataManager``, what ``consumerGroupHeartbeat`` and ``classicGroupJoinToConsumerGroup`` call.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from tidelog.groups.consumer.asking import Fault
from tidelog.groups.consumer.assigning import TargetWork, preferred, put_target
from tidelog.groups.consumer.change import Change
from tidelog.groups.consumer.converting import downgraded, may_downgrade
from tidelog.groups.consumer.decided import MaySee
from tidelog.groups.consumer.reconciling import Subscribed, next_step
from tidelog.groups.consumer.regexes import RegexWork, put_regexes
from tidelog.groups.consumer.steps import Steps, whole
from tidelog.groups.consumer.timing import Timing
from tidelog.groups.state.consumer_group import ConsumerGroup, MemberState, written
from tidelog.groups.state.shard_state import ShardState
from tidelog.groups.state.topics import Topics, metadata_hash
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
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
    Partitions,
    Target,
    TargetEpoch,
)

logger = logging.getLogger(__name__)

_REGEX_PAUSE_MS: Final = 10_000
"""Minimum time between checks whether new topics match."""


class Deciding:
    """Puts what follows from a decision into its change."""

    __slots__ = ("_shard", "_timing")

    def __init__(self, shard: ShardState, timing: Timing) -> None:
        self._shard = shard
        self._timing = timing

    # --- Members that come ----------------------------------------------------------------------------

    def room_fault(self, consumer: ConsumerGroup) -> Fault | None:
        """Check whether the group, and the partition, may have one more member."""
        settings = self._shard.settings
        most = settings.consumer_max_size
        if len(consumer.members) >= most:
            return ErrorCode.GROUP_MAX_SIZE_REACHED, f"expected fewer than {most} members (group.consumer.max.size)"
        if self._shard.population.members >= settings.members_max:
            text = f"expected fewer than {settings.members_max} members here (group.coordinator.members.max)"
            return ErrorCode.GROUP_MAX_SIZE_REACHED, text
        return None

    def take_over(self, change: Change, instance_id: str, member_id: str) -> None:
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
        self.remove(change, holder)
        assigned = {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in current.assigned.items()}
        change.put(ConsumerKey(MEMBER, consumer.group_id, member_id), subscription)
        change.put(ConsumerKey(TARGET, consumer.group_id, member_id), Target(target))
        moved = CurrentAssignment(0, 0, MemberState.STABLE, assigned, {})
        change.put(ConsumerKey(CURRENT, consumer.group_id, member_id), moved)
        logger.info("group %s: static member %s is now %s", consumer.group_id, instance_id, member_id)

    # --- The group ------------------------------------------------------------------------------------

    def resolve(self, change: Change, topics: Topics, may_see: MaySee, now: Moment) -> bool:
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
            self._timing.rest(change.group, now)
        return is_done

    def bump_if_needed(self, change: Change, topics: Topics, *, is_wanted: bool) -> None:
        """Increase the group epoch if members or topics changed."""
        consumer = change.group
        if not is_wanted and topics.version == consumer.metadata_version:
            return
        consumer.metadata_version = topics.version
        found = metadata_hash(topics, consumer.subscribed_topics())
        if is_wanted or found != consumer.metadata_hash:
            change.put(ConsumerKey(GROUP, consumer.group_id), GroupEpoch(consumer.epoch + 1, found))

    def assign_if_needed(self, change: Change, topics: Topics, now: Moment) -> None:
        """Make a new target if the group has changed, unless one is being made, or the last one is too young
        (KIP-1263). A wall clock that was set back is no reason to wait."""
        consumer, settings = change.group, self._shard.settings
        if consumer.epoch <= consumer.assignment_epoch:
            return
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

    # --- A member -------------------------------------------------------------------------------------

    def reconcile(
        self, change: Change, member_id: str, member: MemberSubscription, owned: Partitions | None, topics: Topics
    ) -> CurrentAssignment:
        """Move the member one step on. Returns where it is now. ``owned``: what it says that it has."""
        consumer = change.group
        after = next_step(
            member_id,
            consumer.current_of(member_id),
            consumer.assignment_epoch,
            consumer.target_of(member_id),
            owned,
            consumer.owner,
            Subscribed(topics, consumer.topics_of(member)),
        )
        if consumer.current.get(member_id) != after:
            change.put(ConsumerKey(CURRENT, consumer.group_id, member_id), after)
        return after

    # --- Members that go ------------------------------------------------------------------------------

    def fence(self, change: Change, member_id: str, topics: Topics, now: Moment) -> None:
        """Remove a member; its partitions become free. If only classic members are left, the group becomes classic. An
        emptied group has equal epochs (KAFKA-20442)."""
        consumer = change.group
        self.remove(change, member_id)
        self._drop_regexes(change)
        if self.downgrade_if_due(change, topics, now):
            return
        self.bump_if_needed(change, topics, is_wanted=True)
        if not consumer.members:
            change.put(ConsumerKey(TARGET_EPOCH, consumer.group_id), TargetEpoch(consumer.epoch))

    def remove(self, change: Change, member_id: str) -> None:
        self._timing.end(change.group, member_id)
        for kind in (CURRENT, TARGET, MEMBER):
            change.put(ConsumerKey(kind, change.group.group_id, member_id), None)

    def downgrade_if_due(self, change: Change, topics: Topics, now: Moment) -> bool:
        """Make the group classic if the policy allows it and no member of the consumer protocol is left. All of that is
        in one batch; a group that is too large for it stays as it is."""
        shard, consumer = self._shard, change.group
        if not may_downgrade(consumer, shard.settings):
            return False
        classic = downgraded(consumer, topics, now)
        assignments = {name: member.assignment for name, member in classic.members.items()}
        tombstones = consumer.record_keys()
        if not change.has_room_for(
            [*(written(key, None) for key in tombstones), shard.group_record(classic, assignments)],
            shard.batch_bytes_max,
        ):
            logger.warning("group %s: too large to become a classic group", consumer.group_id)
            return False
        for key in tombstones:
            change.put(key, None)
        change.become_classic(classic, shard.group_record(classic, assignments))
        for name in classic.members:
            self._timing.end(consumer, name)
        return True
