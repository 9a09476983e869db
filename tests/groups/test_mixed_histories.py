"""Random histories of a group with members of both protocols, which is converted up and down meanwhile: the rules of
:mod:`tests.groups.test_consumer_histories`, with classic members, eager and cooperative ones, among the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from tidelog.groups.state.settings import MigrationPolicy
from tidelog.groups.state.transitions import GroupState
from tidelog.model.assignors import Subscription
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.group_api import JoinedMember, JoinGroupResponse, SyncGroupResponse
from tidelog.proto.logs.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

from .test_consumer_histories import History, picks

SESSION_MS, REBALANCE_MS = 10_000, 60_000
NAME = "some"
"""The protocol that all classic members speak, whatever they mean by it."""


@dataclass(eq=False)
class Classic:
    """A classic member as its client is. ``step``: what it does next."""

    topics: tuple[str, ...]
    is_eager: bool
    member_id: str = ""
    generation: int = -1
    reads: set[TopicPartition] = field(default_factory=set)
    step: str = "join"
    waits: int | None = None
    assigns: dict[str, bytes] | None = None
    heard_ms: int = 0
    sent_ms: int = 0
    slow_since_ms: int | None = None


class Mixed(History):
    changes: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.classics: list[Classic] = []

    # --- What classic members do ----------------------------------------------------------------------

    @initialize(is_eager=st.booleans(), count=st.integers(0, 2))
    def begin(self, is_eager: bool, count: int) -> None:
        """Most groups are classic at first."""
        for _ in range(count):
            self.come_classic(("t",), is_eager)
        self.go_well(4)

    @rule(pick=picks)
    def die(self, pick: int) -> None:
        if pick < 8:
            super().die(pick)

    @rule(pick=picks, for_a_while=st.booleans())
    def leave(self, pick: int, for_a_while: bool) -> None:
        if pick < 16:
            super().leave(pick, for_a_while)

    @rule(pick=picks)
    def leave_the_group_to_classic_members(self, pick: int) -> None:
        if pick < 24:
            while self.members and self.members[0].waits is None:
                super().leave(0, for_a_while=False)

    @rule(topics=st.sampled_from((("t",), ("t", "u"))), is_eager=st.booleans())
    def come_classic(self, topics: tuple[str, ...], is_eager: bool) -> None:
        if len(self.classics) < 4:
            self.classics.append(Classic(topics, is_eager, heard_ms=self.desk.now_ms))
            self._act(self.classics[-1])

    @rule(pick=picks)
    def act(self, pick: int) -> None:
        if self.classics:
            self._act(self.classics[pick % len(self.classics)])

    @rule(rounds=st.integers(1, 4))
    def go_well(self, rounds: int) -> None:
        """All classic members go on, and what is written is stored."""
        for _ in range(rounds):
            for member in list(self.classics):
                self._act(member)
            while self.desk.appends:
                self.desk.end()
            self.pass_time(1)
            self.no_partition_has_two_readers()

    @rule(pick=picks)
    def leave_classic(self, pick: int) -> None:
        if self.classics and pick < 16:
            member = self.classics.pop(pick % len(self.classics))
            if member.member_id:
                self._leave(member)

    def _leave(self, member: Classic) -> None:
        if self.desk.has_group() and self.desk.group().consumer is not None:
            self._ask(self.desk.beat(member.member_id, -1))  # as the shell does for LeaveGroup
        elif self.desk.has_group():
            self.desk.leave((member.member_id, None))
        self._deliver()

    @rule(pick=picks)
    def die_classic(self, pick: int) -> None:
        if self.classics and pick < 8:
            self.classics.pop(pick % len(self.classics))

    @rule(pick=picks)
    def lose_a_classic_answer(self, pick: int) -> None:
        """The member gives its request up, and joins again."""
        member = self.classics[pick % len(self.classics)] if self.classics else None
        if member is not None and member.waits is not None:
            member.waits, member.step = None, "join"

    def _act(self, member: Classic) -> None:
        if member.waits is not None:
            return
        member.sent_ms = self.desk.now_ms
        match member.step:
            case "join":
                if member.is_eager:
                    member.reads = set()
                said = Subscription(member.topics, owned=tuple(sorted(member.reads)))
                metadata = encode_subscription(said, version=0 if member.is_eager else 3)
                waiter = self.desk.join(
                    member.member_id, protocols={NAME: metadata}, session=SESSION_MS, rebalance=REBALANCE_MS
                )
            case "sync":
                waiter = self.desk.sync(member.member_id, member.generation, member.assigns)
            case _:
                self._heartbeat(member)
                return
        member.waits = waiter
        self._ask(waiter)

    def _heartbeat(self, member: Classic) -> None:
        error = self.desk.heartbeat(member.member_id, member.generation)
        match error:
            case ErrorCode.NONE:
                member.heard_ms = self.desk.now_ms
            case ErrorCode.REBALANCE_IN_PROGRESS:
                if member.slow_since_ms is None:
                    member.slow_since_ms = member.heard_ms
                member.heard_ms = self.desk.now_ms
                member.step = "join"
            case _:
                self._lost(member, error)

    def _lost(self, member: Classic, error: ErrorCode) -> None:
        member.reads, member.step, member.generation, member.slow_since_ms = set(), "join", -1, None
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            member.member_id = ""

    def _deliver(self) -> None:
        super()._deliver()
        for member in list(getattr(self, "classics", ())):
            if member.waits is None or member.waits not in self.desk.answers:
                continue
            said = self.desk.answers[member.waits]
            member.waits = None
            match said:
                case JoinGroupResponse(ErrorCode.NONE):
                    member.member_id, member.generation, member.step = said.member_id, said.generation_id, "sync"
                    member.assigns = _divided(self, said.members) if said.members else None
                    member.heard_ms, member.slow_since_ms = self.desk.now_ms, None
                case JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED):
                    member.member_id = said.member_id
                case SyncGroupResponse(ErrorCode.NONE):
                    given = decode_assignment(said.assignment).partitions if said.assignment else ()
                    gone = member.reads - set(given)
                    member.reads, member.step = set(given), "join" if gone else "beat"
                    member.heard_ms = max(member.heard_ms, member.sent_ms)
                case JoinGroupResponse() | SyncGroupResponse():
                    self._failed(member, said.error)
                case _:
                    raise AssertionError(said)

    def _failed(self, member: Classic, error: ErrorCode) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lost(member, error)
        else:
            assert error in (
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
            )
            member.step = "join"

    # --- What happens to them -------------------------------------------------------------------------

    @rule(name=st.sampled_from(("t", "u")), more=st.integers(1, 2))
    def change_topic(self, name: str, more: int) -> None:
        """Topics only grow: classic members know them by name, and cannot tell a new one from an old one."""
        super().change_topic(name, more)

    @rule(ms=st.sampled_from((1, 2, 100, 2_000)))
    def pass_time(self, ms: int) -> None:
        """Members whose time is over stop by themselves."""
        for member in list(self.classics):
            silent = member.step == "beat" and self.desk.now_ms + ms - member.heard_ms >= SESSION_MS
            slow = member.slow_since_ms is not None and self.desk.now_ms + ms - member.slow_since_ms >= REBALANCE_MS
            late = member.step != "beat" and self.desk.now_ms + ms - member.heard_ms >= SESSION_MS
            if silent or slow or late:
                self.classics.remove(member)
        super().pass_time(ms)

    @rule(stored=st.integers(0, 3))
    def fail_over(self, stored: int) -> None:
        super().fail_over(stored)
        for member in self.classics:
            if member.waits is not None:
                member.waits, member.step = None, "join"
            member.heard_ms = self.desk.now_ms
            if member.slow_since_ms is not None:
                member.slow_since_ms = self.desk.now_ms

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        super().no_partition_has_two_readers()
        names = {shape.topic_id: name for name, shape in self.desk.topics.shapes.items()}
        readers = {
            TopicPartition(names[topic_id], number): member.member_id
            for member in self.members
            for topic_id, number in member.reads
            if topic_id in names
        }
        for member in getattr(self, "classics", ()):
            for at in member.reads:
                assert at not in readers, f"{at} is read by {readers[at]} and {member.member_id}"
                readers[at] = member.member_id

    def _everybody_acts(self) -> None:
        for _ in range(6):
            for classic in list(self.classics):
                if classic.waits is not None and classic.waits not in self.desk.answers:
                    continue
                self._act(classic)
                self._deliver()
                self.no_partition_has_two_readers()
        if self.members:
            super()._everybody_acts()

    def teardown(self) -> None:
        if not self.classics:
            super().teardown()
            return
        self.desk.auto = True
        while self.desk.appends:
            self.desk.end()
        for _ in range(60):
            self._deliver()
            self._everybody_acts()
            self.desk.pass_time(3_000)
        group = self.desk.group()
        assert group.consumer is not None or group.state is GroupState.STABLE
        if self.members and group.consumer is not None:
            assert group.consumer.state.value == "Stable"
        read = {at for member in self.classics for at in member.reads}
        names = {shape.topic_id: name for name, shape in self.desk.topics.shapes.items()}
        read |= {
            TopicPartition(names[topic_id], number)
            for member in self.members
            for topic_id, number in member.reads
            if topic_id in names
        }
        wanted = {topic for member in self.classics for topic in member.topics}
        wanted |= {topic for member in self.members for topic in member.topics}
        shapes = {name: shape for name, shape in self.desk.topics.shapes.items() if name in wanted}
        if group.consumer is not None:
            assert read == {
                TopicPartition(name, at) for name, shape in shapes.items() for at in range(shape.partitions)
            }
        self.desk.perform(self.desk.shard.resign(self.desk.now))
        assert self.asked <= set(self.desk.answers), "each request is answered"


def _divided(history: Mixed, members: tuple[JoinedMember, ...]) -> dict[str, bytes]:
    """What a leader assigns: each partition in turn to those that want it, but to nobody while another has it."""
    claims: dict[TopicPartition, str] = {}
    wants: dict[str, tuple[str, ...]] = {}
    for member in members:
        said = decode_subscription(member.metadata)
        wants[member.member_id] = said.topics
        claims.update(dict.fromkeys(said.owned, member.member_id))
    shares: dict[str, list[TopicPartition]] = {name: [] for name in wants}
    for topic, shape in sorted(history.desk.topics.shapes.items()):
        takers = sorted(name for name, topics in wants.items() if topic in topics)
        for number in range(shape.partitions if takers else 0):
            at = TopicPartition(topic, number)
            taker = takers[number % len(takers)]
            if claims.get(at, taker) == taker:
                shares[taker].append(at)
    return {name: encode_assignment(share) for name, share in shares.items()}


class Upwards(Mixed):
    """Groups are never converted back, and targets are made in portions."""

    changes: ClassVar[dict[str, Any]] = {
        "migration_policy": MigrationPolicy.UPGRADE,
        "work_max": 20,
        "consumer_assignment_interval_ms": 1_000,
    }


@pytest.mark.parametrize("kind", [Mixed, Upwards])
def test_random_histories(kind: type[Mixed]) -> None:
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
