"""A shard that a test drives by hand, with its log beside it, and ``__consumer_offsets`` in memory for the shell."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.coordinators import MemoryLog, ShardDesk
from tidelog.groups.batches import batch_of
from tidelog.groups.shard import Shard
from tidelog.groups.state.consumer_group import ConsumerGroup
from tidelog.groups.state.effects import Answer, Append, AppendMarker, Effect
from tidelog.groups.state.group import Group
from tidelog.groups.state.settings import GroupSettings
from tidelog.groups.state.topics import TopicShape
from tidelog.model.assignors import Subscription
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from tidelog.proto.calls.consumer_group_api import (
    ConsumerGroupHeartbeatRequest,
    IdAssignment,
    TopicIdPartitions,
    TopicNames,
)
from tidelog.proto.calls.group_api import (
    GroupPartition,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    MemberAssignment,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    SyncGroupRequest,
)
from tidelog.proto.calls.transaction_api import TransactionMarker, TxnOffsetCommitRequest
from tidelog.proto.logs.consumer_protocol import encode_subscription


def subscription(*topics: str) -> bytes:
    return encode_subscription(Subscription(topics))


class SomeTopics:
    """Topics that a test makes, grows and deletes. Implements :class:`tidelog.groups.state.topics.Topics`."""

    def __init__(self) -> None:
        self.version = 0
        self.shapes: dict[str, TopicShape] = {}

    def put(self, name: str, partitions: int) -> TopicId:
        """Make a topic, or let it grow."""
        self.version += 1
        known = self.shapes.get(name)
        topic_id = TopicId(self.version.to_bytes(16)) if known is None else known.topic_id
        self.shapes[name] = TopicShape(topic_id, partitions)
        return topic_id

    def delete(self, name: str) -> None:
        self.version += 1
        del self.shapes[name]

    def shape(self, name: str) -> TopicShape | None:
        return self.shapes.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        return next((name for name, shape in self.shapes.items() if shape.topic_id == topic_id), None)

    def names(self) -> list[str]:
        return sorted(self.shapes)


class Desk(ShardDesk[Shard, GroupSettings, Append | AppendMarker]):
    """See :class:`ShardDesk`."""

    def __init__(
        self, settings: GroupSettings | None = None, *, auto: bool = True, epoch: int = 1, **changes: Any
    ) -> None:
        self.rng = random.Random(5)
        at_once = GroupSettings(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0)
        settings = replace(settings or at_once, **changes)
        self.topics = SomeTopics()
        super().__init__(settings, auto=auto, epoch=epoch, now_ms=1_000)

    def _shard(self, epoch: int) -> Shard:
        return Shard(LeaderEpoch(epoch), self.settings, self.rng, topics=lambda: self.topics)

    def _built(self, append: Append | AppendMarker) -> bytearray:
        return batch_of(append)

    def consumer(self, group_id: str = "g") -> ConsumerGroup:
        found = self.group(group_id).consumer
        assert found is not None
        return found

    def group(self, group_id: str = "g") -> Group:
        return self.shard.state.groups[group_id]

    def has_group(self, group_id: str = "g") -> bool:
        return group_id in self.shard.state.groups

    # --- Effects ------------------------------------------------------------------------------------

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self.answer(effect.waiter, effect.response)
            else:
                self.appends.append(effect)
        if self.auto:
            while self.appends:
                self.end()

    end = ShardDesk.end_append

    def settle(self) -> None:
        self.pass_time(0)

    # --- Requests -----------------------------------------------------------------------------------

    def join(self, member_id: str = "", **changes: Any) -> int:
        """Ask to join; ``protocols`` as name → metadata."""
        protocols = changes.pop("protocols", {"range": subscription("t")})
        request = JoinGroupRequest(
            changes.pop("group", "g"),
            changes.pop("session", 10_000),
            changes.pop("rebalance", 60_000),
            member_id,
            changes.pop("instance", None),
            changes.pop("protocol_type", "consumer"),
            tuple(GroupProtocol(name, metadata) for name, metadata in protocols.items()),
            changes.pop("client", "c"),
            admit_unknown=changes.pop("admit_unknown", False),
        )
        assert not changes
        return self.ask(self.shard.join, request, "/h")

    def beat(self, member_id: str, epoch: int, **changes: Any) -> int:
        """A heartbeat of the consumer protocol; ``topics`` as names, ``owned`` as topic id → partitions."""
        topics, owned = changes.pop("topics", None), changes.pop("owned", None)
        request = ConsumerGroupHeartbeatRequest(
            changes.pop("group", "g"),
            member_id,
            epoch,
            changes.pop("instance", None),
            None,
            changes.pop("rebalance", -1),
            None if topics is None else TopicNames(tuple(topics)),
            changes.pop("regex", None),
            changes.pop("assignor", None),
            None if owned is None else IdAssignment(tuple(TopicIdPartitions(*each) for each in owned.items())),
            "c",
        )
        may_see = changes.pop("may_see", lambda _: True)
        assert not changes
        return self.ask(self.shard.consumer_heartbeat, request, "/h", may_see)

    def come(self, member_id: str, *topics: str, **changes: Any) -> int:
        """A member of the consumer protocol joins."""
        return self.beat(member_id, 0, topics=topics, owned={}, rebalance=60_000, **changes)

    def member_id(self, **changes: Any) -> str:
        """Ask for an id (KIP-394)."""
        answer = self.answers[self.join(**changes)]
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
        return answer.member_id

    def newcomer(self, **changes: Any) -> tuple[str, int]:
        """A new dynamic member asks for an id, then joins with it."""
        member_id = self.member_id(**changes)
        return member_id, self.join(member_id, **changes)

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **changes: Any) -> int:
        request = SyncGroupRequest(
            changes.pop("group", "g"),
            generation,
            member_id,
            changes.pop("instance", None),
            changes.pop("protocol_type", ""),
            changes.pop("protocol_name", ""),
            tuple(MemberAssignment(*item) for item in (assignments or {}).items()),
        )
        assert not changes
        return self.ask(self.shard.sync, request)

    def stable(self, count: int = 1, instances: tuple[str, ...] = (), **changes: Any) -> list[str]:
        """A stable group of dynamic and static members; their ids, the leader's first."""
        waiters = [self.newcomer(**changes)[1] for _ in range(count)]
        waiters += [self.join(instance=instance, **changes) for instance in instances]
        while not set(waiters) <= set(self.answers):
            deadline = self.shard.next_deadline()
            assert deadline is not None
            self.pass_time(max(deadline - self.now_ms, 0))
        answers = [self.answers[waiter] for waiter in waiters]
        assert len({answer.generation_id for answer in answers}) == 1, "several members need an initial delay"
        return self.synced(answers)

    def synced(self, joined: list[JoinGroupResponse]) -> list[str]:
        """Sync all that joined; their ids, the leader's first."""
        joined = sorted(joined, key=lambda answer: not answer.members)
        leader = joined[0]
        assignments = {member.member_id: b"of " + member.member_id.encode() for member in leader.members}
        for answer in joined:
            assert answer.error is ErrorCode.NONE
            given = assignments if answer is leader else None
            self.sync(answer.member_id, answer.generation_id, given, instance=self.instance_of(answer.member_id))
        return [answer.member_id for answer in joined]

    def instance_of(self, member_id: str, group: str = "g") -> str | None:
        return self.group(group).members[member_id].instance_id

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None, group: str = "g") -> ErrorCode:
        return self.shard.heartbeat(HeartbeatRequest(group, generation, member_id, instance), self.now).error

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> LeaveGroupResponse:
        response, effects = self.shard.leave(
            LeaveGroupRequest(group, tuple(LeavingMember(*member) for member in members)), self.now
        )
        self.perform(effects)
        return response

    def commit(
        self,
        offsets: dict[str, int],
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = "g",
        metadata: str = "",
    ) -> int:
        """``offsets``: "topic-partition" → offset."""
        items = tuple(
            OffsetCommitPartition(*_partition(name), Offset(offset), LeaderEpoch(3), metadata)
            for name, offset in offsets.items()
        )
        return self.ask(self.shard.commit_offsets, OffsetCommitRequest(group, generation, member_id, instance, items))

    def committed(self, group: str = "g") -> dict[str, int]:
        found = self.shard.fetch_offsets(OffsetFetchGroup(group, all_partitions=True), require_stable=False)
        return {f"{item.topic}-{item.partition}": item.offset for item in found.offsets}

    def unstable(self, *names: str, group: str = "g") -> list[str]:
        """Those partitions that have a commit on its way or in an open transaction."""
        asked = OffsetFetchGroup(group, tuple(GroupPartition(*_partition(name)) for name in names))
        found = self.shard.fetch_offsets(asked, require_stable=True).offsets
        return [f"{at.topic}-{at.partition}" for at in found if at.error is ErrorCode.UNSTABLE_OFFSET_COMMIT]

    def commit_in(
        self,
        producer: tuple[int, int],
        offsets: dict[str, int],
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = "g",
    ) -> int:
        """Commit offsets in the transaction of a producer id and epoch."""
        items = tuple(
            OffsetCommitPartition(*_partition(name), Offset(offset), LeaderEpoch(3), "")
            for name, offset in offsets.items()
        )
        request = TxnOffsetCommitRequest(
            "x", group, ProducerId(producer[0]), ProducerEpoch(producer[1]), generation, member_id, instance, items
        )
        return self.ask(self.shard.commit_transactional, request)

    def complete(self, producer: tuple[int, int], *, committed: bool, version: int = 1) -> int:
        """Have a marker written."""
        marker = TransactionMarker(
            ProducerId(producer[0]), ProducerEpoch(producer[1]), committed, 0, (), transaction_version=version
        )
        return self.ask(self.shard.complete, marker)

    def delete_offsets(self, *names: str, group: str = "g") -> int:
        partitions = tuple(GroupPartition(*_partition(name)) for name in names)
        return self.ask(self.shard.delete_offsets, OffsetDeleteRequest(group, partitions))

    def delete_group(self, group: str = "g") -> int:
        return self.ask(self.shard.delete_group, group)

    def error_of_group(self, waiter: int) -> ErrorCode:
        found: ErrorCode = self.answers[waiter].error
        return found

    def error(self, waiter: int) -> ErrorCode:
        """The error of an answer; of a commit that of its only partition."""
        answer = self.answers[waiter]
        if isinstance(answer, ErrorCode):
            return answer
        found: ErrorCode = (answer if hasattr(answer, "error") else answer.results[0]).error
        return found


def _partition(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


@pytest.fixture
def desk_type() -> type[Desk]:
    return Desk


@pytest.fixture
def desk() -> Desk:
    """With no initial delay: a first member is in at once."""
    return Desk()


@pytest.fixture
def crowd() -> Desk:
    """With an initial delay, for groups of several members."""
    return Desk(initial_rebalance_delay_ms=3_000)


@pytest.fixture
def offsets_log() -> MemoryLog:
    return MemoryLog()
