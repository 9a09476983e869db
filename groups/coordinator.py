"""The group coordinator of a node: the shell around the partitions of ``__consumer_offsets`` that it leads.

:mod:`tidelog.replication.coordinators.coordinator_shell` has the parts that all coordinators share,
:mod:`tidelog.groups.shard` the decisions of one partition.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from tidelog.groups.adding import Adding, AddPartitions, Role
from tidelog.groups.batches import batch_of
from tidelog.groups.offsets.committing import commit_answer
from tidelog.groups.offsets.transactional import adding_error, txn_commit_answer
from tidelog.groups.routing import group_id_fault, partition_for
from tidelog.groups.shard import Shard
from tidelog.groups.state.counters import GroupCounters, GroupGauges
from tidelog.groups.state.effects import Answer, Append, AppendMarker, Effect
from tidelog.groups.state.settings import GroupSettings
from tidelog.groups.state.topics import NoTopics, Topics
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.calls.consumer_group_api import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from tidelog.proto.calls.group_api import (
    CommittedOffset,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResult,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.calls.transaction_api import TransactionMarker, TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tidelog.proto.logs.coordinator_records import OffsetCommitValue
from tidelog.proto.transport.network import CallContext
from tidelog.replication.coordinators.coordinator_log import CoordinatorLog
from tidelog.replication.coordinators.coordinator_shell import CoordinatorShell, Led, LoadStanding, done, settle

_LEADER_ERRORS: Final = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
}


class GroupCoordinator(CoordinatorShell[Shard, Effect]):
    """See the module. ``context.host`` is the host in the members' descriptions."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        rng: random.Random,
        log: CoordinatorLog,
        on_fatal: Callable[[BaseException], None],
        add_partitions: AddPartitions,
        partitions: int | None = None,
        topics: Callable[[], Topics] = NoTopics,
    ) -> None:
        self.counters = GroupCounters()
        count = settings.offsets_topic_num_partitions if partitions is None else partitions
        super().__init__(GROUP_OFFSETS_TOPIC, count, clock, log, self.counters, on_fatal)
        self.settings = settings
        """Settings of partitions that are led from now on."""
        self._rng = rng
        self._topics = topics
        self._adding = Adding(add_partitions, on_fatal)

    # --- Life ---------------------------------------------------------------------------------------

    def kill(self) -> None:
        super().kill()
        self._adding.kill()

    def partition_for(self, key: str) -> int:
        return partition_for(key, self._partitions)

    def _new_shard(self, partition: int, epoch: LeaderEpoch) -> Shard:
        bytes_max = self._log.batch_bytes_max(partition)
        return Shard(epoch, self.settings, self._rng, bytes_max, counters=self.counters, topics=self._topics)

    def _load_bytes(self) -> int:
        return self.settings.offsets_load_buffer_size

    def _resign(self, led: Led[Shard]) -> Sequence[Effect]:
        self._adding.resigned(_role(led))
        return led.shard.resign(self._now())

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Delete the committed offsets of deleted topics."""
        topics = tuple(names)
        for led in self._actives():
            self._perform(led, led.shard.topics_deleted(topics, self._now()))

    # --- Membership ---------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, context: CallContext) -> asyncio.Future[JoinGroupResponse]:
        refused = partial(JoinGroupResponse, member_id=request.member_id)
        return self._ask(_key(request.group_id), refused, Shard.join, request, f"/{context.host}")

    def sync(self, request: SyncGroupRequest, context: CallContext) -> asyncio.Future[SyncGroupResponse]:
        return self._ask(_key(request.group_id), SyncGroupResponse, Shard.sync, request)

    def heartbeat(self, request: HeartbeatRequest, context: CallContext) -> asyncio.Future[HeartbeatResponse]:
        """Answer a heartbeat. While the group is being loaded, all is well: sessions restart afterwards (as in
        Kafka)."""
        led = self._active(_key(request.group_id))
        if isinstance(led, Led):
            response = led.shard.heartbeat(request, self._now())
            self._perform(led, ())
            return done(response)
        code = ErrorCode.NONE if led.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else led.code
        return done(HeartbeatResponse(code, error_message=led.message))

    def leave(self, request: LeaveGroupRequest, context: CallContext) -> asyncio.Future[LeaveGroupResponse]:
        led = self._active(_key(request.group_id))
        if isinstance(led, Refusal):
            return done(LeaveGroupResponse(led.code, error_message=led.message))
        heartbeats = led.shard.leaving_heartbeats(request)
        if heartbeats is not None:
            return self._leave_consumer_group(request, heartbeats, f"/{context.host}")
        response, effects = led.shard.leave(request, self._now())
        self._perform(led, effects)
        return done(response)

    def _leave_consumer_group(
        self, request: LeaveGroupRequest, heartbeats: Sequence[ConsumerGroupHeartbeatRequest], host: str
    ) -> asyncio.Future[LeaveGroupResponse]:
        def put(answered: Callable[[ErrorCode], None], heartbeat: ConsumerGroupHeartbeatRequest) -> None:
            if not heartbeat.member_id:
                answered(ErrorCode.UNKNOWN_MEMBER_ID)
                return

            def left(response: ConsumerGroupHeartbeatResponse) -> None:
                answered(response.error)

            refused = ConsumerGroupHeartbeatResponse
            self._put(left, request.group_id, refused, Shard.consumer_heartbeat, heartbeat, host, lambda _: True)

        def answer(errors: tuple[ErrorCode, ...]) -> LeaveGroupResponse:
            members = zip(request.members, errors, strict=True)
            left = tuple(LeftMember(member.member_id, member.group_instance_id, error) for member, error in members)
            return LeaveGroupResponse(ErrorCode.NONE, left)

        return self._ask_each(heartbeats, put, answer)

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        context: CallContext,
        may_see: Callable[[str], bool] = lambda _: True,
    ) -> asyncio.Future[ConsumerGroupHeartbeatResponse]:
        """``may_see``: the topics that the member may describe."""
        host = f"/{context.host}"
        refused = ConsumerGroupHeartbeatResponse
        key = _key(request.group_id, error=ErrorCode.INVALID_REQUEST)
        return self._ask(key, refused, Shard.consumer_heartbeat, request, host, may_see)

    # --- Offsets ------------------------------------------------------------------------------------

    def commit_offsets(
        self, request: OffsetCommitRequest, context: CallContext
    ) -> asyncio.Future[OffsetCommitResponse]:
        refused = partial(commit_answer, request)
        return self._ask(_offsets_key(request.group_id), refused, Shard.commit_offsets, request)

    def fetch_offsets(self, request: OffsetFetchRequest, context: CallContext) -> asyncio.Future[OffsetFetchResponse]:
        groups = tuple(self._fetch(group, request.require_stable) for group in request.groups)
        return done(OffsetFetchResponse(groups))

    def _fetch(self, group: OffsetFetchGroup, require_stable: bool) -> OffsetFetchResult:
        def refused(error: ErrorCode, /, *, error_message: str) -> OffsetFetchResult:
            failed = (CommittedOffset(item.topic, item.partition, error) for item in group.partitions)
            return OffsetFetchResult(group.group_id, error, tuple(failed), error_message=error_message)

        key = _offsets_key(group.group_id)
        return self._look(key, refused, lambda shard: shard.fetch_offsets(group, require_stable=require_stable))

    def delete_offsets(
        self, request: OffsetDeleteRequest, context: CallContext
    ) -> asyncio.Future[OffsetDeleteResponse]:
        return self._ask(_key(request.group_id), OffsetDeleteResponse, Shard.delete_offsets, request)

    # --- Transactions -------------------------------------------------------------------------------

    def commit_transactional(
        self, request: TxnOffsetCommitRequest, context: CallContext
    ) -> asyncio.Future[TxnOffsetCommitResponse]:
        """Commit offsets that count if the transaction commits. Before the first of them here, ask the transaction's
        coordinator."""
        led = self._active(_key(request.group_id))
        if isinstance(led, Refusal):
            return done(txn_commit_answer(request, led.code, led.message))
        future: asyncio.Future[TxnOffsetCommitResponse] = asyncio.get_running_loop().create_future()
        waiter = self._wait(partial(settle, future))
        if led.shard.has_open(request.producer_id, request.producer_epoch):
            self._perform(led, led.shard.commit_transactional(request, waiter, self._now()))
        elif self._adding.waiting >= self.settings.appends_max:
            self._answer(waiter, txn_commit_answer(request, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self._adding.ask(_role(led), request, partial(self._added, led, request, waiter))
        return future

    def _added(self, led: Led[Shard], request: TxnOffsetCommitRequest, waiter: int, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self._perform(led, led.shard.commit_transactional(request, waiter, self._now()))
        elif error is ErrorCode.NOT_COORDINATOR and not self._is_live(led):
            self._answer(waiter, txn_commit_answer(request, error))
        else:
            self._answer(waiter, txn_commit_answer(request, adding_error(error)))

    def complete_transaction(self, partition: int, marker: TransactionMarker) -> asyncio.Future[ErrorCode]:
        """Write a transaction's marker to one partition, and apply it to the offsets there. Returns errors as a
        partition's leader does (``KafkaApis.handleWriteTxnMarkersRequest``)."""
        led = self._led.get(partition)
        if led is None or led.standing is not LoadStanding.ACTIVE:
            return done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        waiter = self._wait(lambda error: settle(future, _LEADER_ERRORS.get(error, error)))
        self._adding.marker(_role(led), marker)
        self._perform(led, led.shard.complete(marker, waiter, self._now()))
        return future

    # --- Administration -----------------------------------------------------------------------------

    def list_groups(self, request: ListGroupsRequest, context: CallContext) -> asyncio.Future[ListGroupsResponse]:
        return done(ListGroupsResponse(*self._list(lambda shard: shard.list_groups(request.states, request.types))))

    def describe(self, request: DescribeGroupsRequest, context: CallContext) -> asyncio.Future[DescribeGroupsResponse]:
        return done(DescribeGroupsResponse(tuple(self._describe(group_id) for group_id in request.group_ids)))

    def _describe(self, group_id: str) -> DescribedGroup:
        refused = partial(DescribedGroup, group_id)
        return self._look(_offsets_key(group_id), refused, lambda shard: shard.describe(group_id))

    def describe_consumer(
        self, request: ConsumerGroupDescribeRequest, context: CallContext
    ) -> asyncio.Future[ConsumerGroupDescribeResponse]:
        return done(ConsumerGroupDescribeResponse(tuple(map(self._describe_consumer, request.group_ids))))

    def _describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        refused = partial(DescribedConsumerGroup, group_id)
        return self._look(_key(group_id), refused, lambda shard: shard.describe_consumer(group_id))

    def delete_groups(self, request: DeleteGroupsRequest, context: CallContext) -> asyncio.Future[DeleteGroupsResponse]:
        return self._ask_each(request.group_ids, self._delete, DeleteGroupsResponse)

    def _delete(self, deleted: Callable[[DeletedGroup], None], group_id: str) -> None:
        refused = partial(DeletedGroup, group_id)
        self._put(deleted, _offsets_key(group_id), refused, Shard.delete_group, group_id)

    def gauges(self) -> GroupGauges:
        """Return gauges. Visits every group: for scraping, not for hot paths."""
        groups: dict[str, int] = {}
        members = offsets = loaded = 0
        for led in self._actives():
            loaded += 1
            state = led.shard.state
            members += state.population.members
            offsets += state.population.offsets
            for group in state.groups.values():
                name = group.shown_state.value
                groups[name] = groups.get(name, 0) + 1
        return GroupGauges(groups, members, offsets, loaded, len(self._led) - loaded)

    def committed(self, prefix: str) -> Iterator[tuple[str, Iterator[tuple[str, int, OffsetCommitValue]]]]:
        """Yield the committed offsets of groups with this name prefix. Visits every group."""
        for name, _, offsets in self.positions():
            if name.startswith(prefix):
                yield name, offsets

    def positions(self) -> Iterator[tuple[str, bool, Iterator[tuple[str, int, OffsetCommitValue]]]]:
        """Yield every group's name, whether it has members, and its committed offsets."""
        for led in self._actives():
            for name, group in led.shard.state.groups.items():
                yield name, not group.is_empty, group.offsets.items()

    # --- Effects ------------------------------------------------------------------------------------

    def _do(self, led: Led[Shard], effect: Effect) -> None:
        match effect:
            case Answer(waiter, response):
                self._answer(waiter, response)
            case Append() | AppendMarker():
                self._append(led, effect.token, batch_of(effect))


def _key(group_id: str, *, may_be_empty: bool = False, error: ErrorCode = ErrorCode.INVALID_GROUP_ID) -> str | Refusal:
    fault = group_id_fault(group_id, may_be_empty=may_be_empty)
    return group_id if fault is None else Refusal(error, fault)


_offsets_key: Final = partial(_key, may_be_empty=True)


def _role(led: Led[Shard]) -> Role:
    return Role(led.partition, led.epoch)
