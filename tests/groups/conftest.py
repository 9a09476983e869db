"""A shard that a test drives by hand, with its log beside it, and ``__consumer_offsets`` in memory for the shell."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tidelog.groups.batches import batch_of
from tidelog.groups.effects import Answer, Append, AppendMarker, Effect
from tidelog.groups.settings import GroupSettings
from tidelog.groups.shard import Shard
from tidelog.model.assignors import Subscription
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition
from tidelog.model.moment import Moment
from tidelog.proto.consumer_protocol import encode_subscription
from tidelog.proto.group_api import (
    GroupPartition,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    SyncGroupRequest,
)
from tidelog.proto.records import patch_batch, split_batches
from tidelog.proto.transaction_api import TransactionMarker, TxnOffsetCommitRequest
from tidelog.replication.coordinator_log import LogRange, LogSlice

WALL_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    return encode_subscription(Subscription(topics))


class Desk:
    """Requests in, answers by the handle that each returns; appends are ended by the test.

    ``auto``: an append is committed as soon as it is asked for. ``log``: the batches that were written.
    """

    def __init__(
        self, settings: GroupSettings | None = None, *, auto: bool = True, epoch: int = 1, **changes: int
    ) -> None:
        self.settings = replace(settings or GroupSettings(initial_rebalance_delay_ms=0), **changes)
        self.auto = auto
        self.now_ms = 1_000
        self.wall_ms = WALL_MS
        self.answers: dict[int, Any] = {}
        self.appends: list[Append | AppendMarker] = []
        self.log: list[Append | AppendMarker] = []
        self.epoch = epoch
        self.rng = random.Random(5)
        self.shard = self._shard(epoch)
        self._waiter = 0
        self.perform(self.shard.loaded(self.now))

    def _shard(self, epoch: int) -> Shard:
        return Shard(LeaderEpoch(epoch), self.settings, self.rng)

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.wall_ms)

    def group(self, group_id: str = "g") -> Any:
        return self.shard.state.groups.get(group_id)

    # --- Effects ------------------------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.waiter not in self.answers, f"{effect.waiter} is answered twice"
                self.answers[effect.waiter] = effect.response
            else:
                self.appends.append(effect)
        if self.auto:
            while self.appends:
                self.end()

    def end(self, error: ErrorCode = ErrorCode.NONE, at: int = 0) -> None:
        """End the append at ``at`` of those under way."""
        append = self.appends.pop(at)
        if error is ErrorCode.NONE:
            self.log.append(append)
        self.perform(self.shard.appended(append.token, error, self.now))

    def pass_time(self, ms: int) -> None:
        """Let time pass, timer by timer."""
        until = self.now_ms + ms
        while True:
            deadline = self.shard.next_deadline()
            if deadline is None or deadline > until:
                break
            self.wall_ms += max(deadline - self.now_ms, 0)
            self.now_ms = max(deadline, self.now_ms)
            self.perform(self.shard.tick(self.now))
        self.wall_ms += until - self.now_ms
        self.now_ms = until

    def settle(self) -> None:
        self.pass_time(0)

    def fail_over(self, **changes: int) -> None:
        """Another coordinator loads what was written."""
        self.perform(self.shard.resign(self.now))
        self.appends.clear()
        self.epoch += 1
        self.settings = replace(self.settings, **changes)
        self.shard = self._shard(self.epoch)
        for batch in self.batches():
            self.shard.replay(batch)
        self.perform(self.shard.loaded(self.now))

    def batches(self) -> list[Any]:
        data = bytearray()
        offset = 0
        for append in self.log:
            built = batch_of(append)
            patch_batch(built, 0, base_offset=offset, leader_epoch=0)
            offset += 1 if isinstance(append, AppendMarker) else len(append.records)
            data += built
        return split_batches(bytes(data)) if data else []

    # --- Requests -----------------------------------------------------------------------------------

    def ask(self, call: Callable[..., list[Effect]], *request: Any) -> int:
        self._waiter += 1
        waiter = self._waiter
        self.perform(call(*request, waiter, self.now))
        return waiter

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

    def member_id(self, **changes: Any) -> str:
        """Ask for an id (KIP-394)."""
        answer = self.answers[self.join(**changes)]
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

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> Any:
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
        """Those of these partitions that have something on its way or in an open transaction."""
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
        return self.answers[waiter].error

    def error(self, waiter: int) -> ErrorCode:
        """The error of an answer; of a commit that of its only partition."""
        answer = self.answers[waiter]
        if isinstance(answer, ErrorCode):
            return answer
        return answer.results[0].error if hasattr(answer, "results") and not hasattr(answer, "error") else answer.error


def _partition(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


class MemoryOffsetsLog:
    """``hold`` keeps appends from being committed until :meth:`commit`; ``refuse`` refuses them."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.epochs: dict[int, LeaderEpoch] = {}
        self.hold = False
        self.refuse: ErrorCode | None = None
        self.read_gate: asyncio.Event | None = None
        self.read_refusal: Refusal | None = None
        self._waiting: list[asyncio.Future[ErrorCode]] = []
        self.reads = 0

    def lead(self, partition: int, epoch: int) -> LeaderEpoch:
        self.epochs[partition] = LeaderEpoch(epoch)
        return LeaderEpoch(epoch)

    def end(self, partition: int) -> int:
        stored = self.batches.get(partition)
        return split_batches(stored[-1])[0].next_offset if stored else 0

    def put(self, partition: int, batch: bytearray) -> None:
        patch_batch(batch, 0, base_offset=self.end(partition), leader_epoch=0)
        self.batches.setdefault(partition, []).append(bytes(batch))

    def commit(self, error: ErrorCode = ErrorCode.NONE) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(error)

    # --- CoordinatorLog ---------------------------------------------------------------------------------

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: bytearray) -> Awaitable[ErrorCode]:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self.epochs.get(partition) != leader_epoch:
            future.set_result(ErrorCode.NOT_COORDINATOR)
        elif self.refuse is not None:
            future.set_result(self.refuse)
        else:
            self.put(partition, batch)
            if self.hold:
                self._waiting.append(future)
            else:
                future.set_result(ErrorCode.NONE)
        return future

    def range(self, partition: int, leader_epoch: LeaderEpoch) -> LogRange | Refusal:
        if self.epochs.get(partition) != leader_epoch:
            return Refusal(ErrorCode.NOT_COORDINATOR)
        return LogRange(Offset(0), Offset(self.end(partition)))

    async def read(
        self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int
    ) -> LogSlice | Refusal:
        self.reads += 1
        if self.read_gate is not None:
            await self.read_gate.wait()
        if self.read_refusal is not None:
            return self.read_refusal
        found = bytearray()
        for stored in self.batches[partition]:
            if split_batches(stored)[0].last_offset < offset:
                continue
            if found and len(found) + len(stored) > bytes_max:
                break
            found += stored
        return LogSlice(bytes(found), Offset(split_batches(found)[-1].next_offset))

    async def committed(self, partition: int, leader_epoch: LeaderEpoch, offset: Offset) -> ErrorCode:
        return ErrorCode.NONE

    def batch_bytes_max(self, partition: int) -> int:
        return 1_048_588


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
def offsets_log() -> MemoryOffsetsLog:
    return MemoryOffsetsLog()
