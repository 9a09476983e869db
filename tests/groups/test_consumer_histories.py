"""Random histories of a consumer group: members that join, are slow, lose answers, leave and fall silent; topics that
grow and go; appends that are refused, late, or stored though nobody hears of it; coordinators that die. What must hold:

- at no instant do two members, by the answers that reached them, have the same partition;
- what a coordinator has in memory, with nothing under way, is what another one reads from the log;
- each request is answered once, at the latest when leadership ends;
- a member's epoch and a group's epochs never fall;
- once everybody is heard from and nothing fails, the group comes to rest with every partition given out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tidelog.groups.state.consumer_group import ConsumerGroup, ConsumerGroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatResponse

from .conftest import Desk

REBALANCE_MS = 60_000
SESSION_MS = 45_000
At = tuple[TopicId, int]
picks = st.integers(0, 63)


@dataclass
class Member:
    """A member as its client is: what it reads now, what it was told to have, and when it must stop by itself."""

    member_id: str
    topics: tuple[str, ...]
    instance: str | None
    epoch: int = 0
    reads: set[At] = field(default_factory=set)
    told: set[At] = field(default_factory=set)
    waits: int | None = None
    """The request that it waits for."""
    is_in: bool = False
    says_all: bool = True
    heard_ms: int = 0
    """When the last request left that was answered well."""
    sent_ms: int = 0
    slow_since_ms: int | None = None
    """Since when it has been told to give something up."""


class History(RuleBasedStateMachine):
    changes: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(auto=False, **self.changes)
        for name in ("t", "u"):
            self.desk.topics.put(name, 4)
        self.members: list[Member] = []
        self.names = 0
        self.asked: set[int] = set()
        self.epochs = (0, 0)

    # --- What members do ------------------------------------------------------------------------------

    @rule(topics=st.sampled_from((("t",), ("u",), ("t", "u"))), static=st.booleans(), pick=picks)
    def come(self, topics: tuple[str, ...], static: bool, pick: int) -> None:
        if len(self.members) >= 5:
            return
        self.names += 1
        instance = f"i{pick % 2}" if static else None
        self._join(Member(f"m{self.names}", topics, instance))

    def _join(self, member: Member) -> None:
        if member not in self.members:
            self.members.append(member)
        member.epoch, member.is_in, member.says_all = 0, False, True
        member.reads, member.told = set(), set()  # whoever joins has given everything up
        self._send(member)

    @rule(pick=picks)
    def beat(self, pick: int) -> None:
        """A heartbeat; by then the member has given up what it was told to."""
        member = self._some(pick)
        if member is None or member.waits is not None:
            return
        if member.is_in:
            member.reads = set(member.told)
            member.slow_since_ms = None
        self._send(member)

    @rule(pick=picks)
    def beat_slowly(self, pick: int) -> None:
        """A heartbeat while the member still works at what it is to give up."""
        member = self._some(pick)
        if member is not None and member.waits is None and member.is_in:
            self._send(member)

    @rule(pick=picks, topics=st.sampled_from((("t",), ("u",), ("t", "u"))))
    def subscribe_otherwise(self, pick: int, topics: tuple[str, ...]) -> None:
        member = self._some(pick)
        if member is not None and member.waits is None:
            member.topics, member.says_all = topics, True
            self._send(member)

    @rule(pick=picks, for_a_while=st.booleans())
    def leave(self, pick: int, for_a_while: bool) -> None:
        """The member closes: it reads nothing any more, whatever becomes of its request."""
        member = self._some(pick)
        if member is None or member.waits is not None:
            return
        self.members.remove(member)
        epoch = -2 if for_a_while and member.instance else -1
        self._ask(self.desk.beat(member.member_id, epoch, instance=member.instance))

    @rule(pick=picks)
    def die(self, pick: int) -> None:
        member = self._some(pick)
        if member is not None:
            self.members.remove(member)

    @rule(pick=picks)
    def lose_the_answer(self, pick: int) -> None:
        """The member gives a request up, and says everything in the next one."""
        member = self._some(pick)
        if member is not None and member.waits is not None:
            member.waits, member.says_all = None, True

    def _send(self, member: Member) -> None:
        owned: dict[TopicId, tuple[int, ...]] = {}
        for topic_id, partition in sorted(member.reads):
            owned[topic_id] = (*owned.get(topic_id, ()), partition)
        changes: dict[str, Any] = {"instance": member.instance, "owned": owned}
        if member.says_all or not member.is_in:
            changes |= {"topics": member.topics, "rebalance": REBALANCE_MS}
        member.says_all = False
        member.sent_ms = self.desk.now_ms
        member.waits = -1
        waiter = self.desk.beat(member.member_id, member.epoch, **changes)
        if member.waits == -1:
            member.waits = waiter
        self._ask(waiter)

    def _some(self, pick: int) -> Member | None:
        return self.members[pick % len(self.members)] if self.members else None

    def _ask(self, waiter: int) -> None:
        self.asked.add(waiter)
        self._deliver()

    def _deliver(self) -> None:
        """Answers reach their members."""
        for member in list(self.members):
            if member.waits is None or member.waits not in self.desk.answers:
                continue
            said = self.desk.answers[member.waits]
            assert isinstance(said, ConsumerGroupHeartbeatResponse)
            member.waits = None
            match said.error:
                case ErrorCode.NONE:
                    self._told(member, said)
                case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_MEMBER_EPOCH:
                    self._join(member)
                case ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.NOT_COORDINATOR:
                    member.says_all = True
                case ErrorCode.UNRELEASED_INSTANCE_ID | ErrorCode.FENCED_INSTANCE_ID:
                    self.members.remove(member)
                case _:
                    raise AssertionError(said)

    def _told(self, member: Member, said: ConsumerGroupHeartbeatResponse) -> None:
        assert said.member_epoch >= member.epoch, "a member's epoch never falls"
        before_ms = member.heard_ms
        member.epoch, member.is_in, member.heard_ms = said.member_epoch, True, member.sent_ms
        if said.assignment is None:
            return
        member.told = {(each.topic_id, number) for each in said.assignment.topics for number in each.partitions}
        if not member.reads <= member.told and member.slow_since_ms is None:
            member.slow_since_ms = before_ms  # an answer that was lost may have said so already
        member.reads |= member.told

    # --- What happens to them --------------------------------------------------------------------------

    @rule(ms=st.sampled_from((1, 2, 100, 5_000, 20_000)))
    def pass_time(self, ms: int) -> None:
        """Members whose time is over stop reading by themselves, as Kafka's clients do."""
        for member in list(self.members):
            silent = self.desk.now_ms + ms - member.heard_ms >= SESSION_MS
            slow = member.slow_since_ms is not None and self.desk.now_ms + ms - member.slow_since_ms >= REBALANCE_MS
            if silent or slow:
                self.members.remove(member)
        self.desk.pass_time(ms)
        self._deliver()

    @rule(error=st.sampled_from((ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS)))
    def end_append(self, error: ErrorCode) -> None:
        if self.desk.appends:
            self.desk.end(error)
            self._deliver()

    @rule(stored=st.integers(0, 3))
    def fail_over(self, stored: int) -> None:
        """Of what was under way some stands in the log, though nobody was told."""
        self.desk.log += self.desk.appends[:stored]
        self.desk.fail_over()
        self._deliver()
        for member in self.members:
            member.heard_ms = self.desk.now_ms  # every member has a whole session again
            if member.slow_since_ms is not None:
                member.slow_since_ms = self.desk.now_ms

    @rule(name=st.sampled_from(("t", "u")), more=st.integers(0, 2))
    def change_topic(self, name: str, more: int) -> None:
        shape = self.desk.topics.shape(name)
        if shape is None or more:
            self.desk.topics.put(name, min(8, more + (2 if shape is None else shape.partitions)))
        else:
            self.desk.topics.delete(name)

    # --- What must hold --------------------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        readers: dict[At, str] = {}
        for member in self.members:
            for at in member.reads:
                assert at not in readers, f"{at} is read by {readers[at]} and {member.member_id}"
                readers[at] = member.member_id

    @invariant()
    def epochs_never_fall(self) -> None:
        group = self._group()
        if group is not None and not group.busy:
            assert group.assignment_epoch <= group.epoch

    @precondition(lambda self: not self.desk.appends)
    @invariant()
    def memory_is_what_the_log_says(self) -> None:
        other = Desk()
        other.topics = self.desk.topics
        other.log = self.desk.log
        other.fail_over()
        group = self._group()
        if group is not None and group.whole_target:
            return  # a target was refused in part: the next one replaces what the log has of it
        if group is None or not (group.epoch or group.members):
            ended = group is None and self.desk.has_group() and self.desk.group().leftovers
            assert not other.has_group() or other.group().consumer is None or (ended and other.group().is_empty)
        else:
            assert _known(other.consumer()) == _known(group)
            assert group.target.keys() <= group.members.keys(), "nobody else has a target"

    def _group(self) -> ConsumerGroup | None:
        return self.desk.group().consumer if self.desk.has_group() else None

    def teardown(self) -> None:
        self.desk.auto = True
        while self.desk.appends:
            self.desk.end()
        self._deliver()
        for _ in range(40):
            self._deliver()
            self._everybody_acts()
            self.desk.pass_time(5_000)
        group = self._group()
        if group is not None and self.members:
            assert group.state is ConsumerGroupState.STABLE
            wanted = {topic for member in self.members for topic in member.topics}
            shapes = [shape for topic in sorted(wanted) if (shape := self.desk.topics.shape(topic)) is not None]
            expected = {(shape.topic_id, number) for shape in shapes for number in range(shape.partitions)}
            assert set().union(*(member.reads for member in self.members)) == expected
            assert group.work is None
            assert group.writing is None
        self.desk.perform(self.desk.shard.resign(self.desk.now))
        assert self.asked <= set(self.desk.answers), "each request is answered"

    def _everybody_acts(self) -> None:
        for member in list(self.members):
            member.says_all = member.says_all or member.waits is not None
            if member.is_in:
                member.reads = set(member.told)
            self._send(member)
            self.no_partition_has_two_readers()


def _known(group: ConsumerGroup) -> object:
    return (
        group.epoch,
        group.assignment_epoch,
        group.members,
        group.current,
        group.target,
        group.owner,
        group.static_members,
    )


class InPortions(History):
    """Targets are worked out and written a little at a time, while members come and go, and at most one a second."""

    changes: ClassVar[dict[str, Any]] = {"work_max": 20, "consumer_assignment_interval_ms": 1_000}


@pytest.mark.parametrize("kind", [History, InPortions])
def test_random_histories(kind: type[History]) -> None:
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
