"""The group coordinator of a node: the shell around the partitions of ``__consumer_offsets`` that it leads.

What is common to coordinators is in :mod:`tidelog.replication.coordinator_shell`, what a partition decides in
:mod:`tidelog.groups.shard`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote

from tidelog.groups.adding import Adding, AddPartitions, Role
from tidelog.groups.batches import batch_of
from tidelog.groups.counters import GroupCounters, GroupGauges
from tidelog.groups.effects import Answer, Append, AppendMarker, Effect
from tidelog.groups.routing import group_id_fault, partition_for
from tidelog.groups.settings import GroupSettings
from tidelog.groups.shard import Shard
from tidelog.groups.transactional import adding_error, txn_commit_answer
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.group_api import (
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
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResult,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.network import CallContext
from tidelog.proto.transaction_api import TransactionMarker, TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tidelog.replication.coordinator_log import CoordinatorLog
from tidelog.replication.coordinator_shell import CoordinatorShell, Led, Standing, done, settle

_LEADER_ERRORS: Final = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
}


class GroupCoordinator(CoordinatorShell[Shard, Effect]):
    """See the module. ``context.peer`` is the host that members are described with."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        rng: random.Random,
        log: CoordinatorLog,
        on_fatal: Callable[[BaseException], None],
        add_partitions: AddPartitions,
        partitions: int | None = None,
    ) -> None:
        self.counters = GroupCounters()
        count = settings.offsets_topic_num_partitions if partitions is None else partitions
        super().__init__(GROUP_OFFSETS_TOPIC, count, clock, log, self.counters, on_fatal)
        self.settings = settings
        """Of the partitions that are led from now on."""
        self._rng = rng
        self._adding = Adding(add_partitions, on_fatal)

    # --- Life ---------------------------------------------------------------------------------------

    def kill(self) -> None:
        super().kill()
        self._adding.kill()

    def partition_for(self, key: str) -> int:
        return partition_for(key, self._partitions)

    def _new_shard(self, partition: int, epoch: LeaderEpoch) -> Shard:
        bytes_max = self._log.batch_bytes_max(partition)
        return Shard(epoch, self.settings, self._rng, bytes_max, counters=self.counters)

    def _load_bytes(self) -> int:
        return self.settings.offsets_load_buffer_size

    def _resign(self, led: Led[Shard]) -> Sequence[Effect]:
        self._adding.resigned(_role(led))
        return led.shard.resign(self._now())

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Forget what is committed of topics that are no more."""
        topics = tuple(names)
        for led in self._actives():
            self._perform(led, led.shard.topics_deleted(topics, self._now()))

    # --- Membership ---------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, context: CallContext) -> asyncio.Future[JoinGroupResponse]:
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return done(JoinGroupResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if not isinstance(led, Led):
            return done(JoinGroupResponse(led, member_id=request.member_id))
        waiter, future = self._waiter(JoinGroupResponse)
        self._perform(led, led.shard.join(request, client_host(context.peer), waiter, self._now()))
        return future

    def sync(self, request: SyncGroupRequest, context: CallContext) -> asyncio.Future[SyncGroupResponse]:
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return done(SyncGroupResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if not isinstance(led, Led):
            return done(SyncGroupResponse(led))
        waiter, future = self._waiter(SyncGroupResponse)
        self._perform(led, led.shard.sync(request, waiter, self._now()))
        return future

    def heartbeat(self, request: HeartbeatRequest, context: CallContext) -> asyncio.Future[HeartbeatResponse]:
        """While the group is loaded, all is well: sessions begin anew after it (as Kafka)."""
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return done(HeartbeatResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if isinstance(led, Led):
            return done(led.shard.heartbeat(request, self._now()))
        return done(HeartbeatResponse(ErrorCode.NONE if led is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else led))

    def leave(self, request: LeaveGroupRequest, context: CallContext) -> asyncio.Future[LeaveGroupResponse]:
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return done(LeaveGroupResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if not isinstance(led, Led):
            return done(LeaveGroupResponse(led))
        response, effects = led.shard.leave(request, self._now())
        self._perform(led, effects)
        return done(response)

    # --- Offsets ------------------------------------------------------------------------------------

    def commit_offsets(
        self, request: OffsetCommitRequest, context: CallContext
    ) -> asyncio.Future[OffsetCommitResponse]:
        led = self._active_for_offsets(request.group_id)
        if not isinstance(led, Led):
            results = (OffsetCommitResult(item.topic, item.partition, led) for item in request.partitions)
            return done(OffsetCommitResponse(tuple(results)))
        waiter, future = self._waiter(OffsetCommitResponse)
        self._perform(led, led.shard.commit_offsets(request, waiter, self._now()))
        return future

    def fetch_offsets(self, request: OffsetFetchRequest, context: CallContext) -> asyncio.Future[OffsetFetchResponse]:
        groups = tuple(self._fetch(group, request.require_stable) for group in request.groups)
        return done(OffsetFetchResponse(groups))

    def _fetch(self, group: OffsetFetchGroup, require_stable: bool) -> OffsetFetchResult:
        led = self._active_for_offsets(group.group_id)
        if isinstance(led, Led):
            return led.shard.fetch_offsets(group, require_stable=require_stable)
        failed = tuple(CommittedOffset(item.topic, item.partition, led) for item in group.partitions)
        return OffsetFetchResult(group.group_id, led, failed)

    def delete_offsets(
        self, request: OffsetDeleteRequest, context: CallContext
    ) -> asyncio.Future[OffsetDeleteResponse]:
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return done(OffsetDeleteResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if not isinstance(led, Led):
            return done(OffsetDeleteResponse(led))
        waiter, future = self._waiter(OffsetDeleteResponse)
        self._perform(led, led.shard.delete_offsets(request, waiter, self._now()))
        return future

    # --- Transactions -------------------------------------------------------------------------------

    def commit_transactional(
        self, request: TxnOffsetCommitRequest, context: CallContext
    ) -> asyncio.Future[TxnOffsetCommitResponse]:
        """Offsets that count if the transaction commits. Its coordinator is asked before the first of them here."""
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return done(txn_commit_answer(request, ErrorCode.INVALID_GROUP_ID, fault))
        led = self._active(request.group_id)
        if not isinstance(led, Led):
            return done(txn_commit_answer(request, led))
        waiter, future = self._waiter(TxnOffsetCommitResponse)
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
        """Write a transaction's marker to one partition, and do what it says of the offsets there. Errors as a
        partition's leader tells them (``KafkaApis.handleWriteTxnMarkersRequest``)."""
        led = self._led.get(partition)
        if led is None or led.standing is not Standing.ACTIVE:
            return done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        waiter = self._wait(lambda error: settle(future, _LEADER_ERRORS.get(error, error)))
        self._adding.marker(_role(led), marker)
        self._perform(led, led.shard.complete(marker, waiter, self._now()))
        return future

    # --- Administration -----------------------------------------------------------------------------

    def list_groups(self, request: ListGroupsRequest, context: CallContext) -> asyncio.Future[ListGroupsResponse]:
        """The groups that are loaded; COORDINATOR_LOAD_IN_PROGRESS beside them while others are not."""
        found: list[ListedGroup] = []
        error = ErrorCode.NONE
        for led in self._led.values():
            if led.standing is Standing.ACTIVE:
                found += led.shard.list_groups(request.states, request.types)
            else:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return done(ListGroupsResponse(error, tuple(found)))

    def describe(self, request: DescribeGroupsRequest, context: CallContext) -> asyncio.Future[DescribeGroupsResponse]:
        return done(DescribeGroupsResponse(tuple(self._describe(group_id) for group_id in request.group_ids)))

    def _describe(self, group_id: str) -> DescribedGroup:
        led = self._active_for_offsets(group_id)
        return led.shard.describe(group_id) if isinstance(led, Led) else DescribedGroup(group_id, led)

    def delete_groups(self, request: DeleteGroupsRequest, context: CallContext) -> asyncio.Future[DeleteGroupsResponse]:
        """Each group is answered for itself; the answer waits for all."""
        future: asyncio.Future[DeleteGroupsResponse] = asyncio.get_running_loop().create_future()
        results: list[DeletedGroup | None] = [None] * len(request.group_ids)
        left = len(results)

        def deleted(at: int, result: DeletedGroup) -> None:
            nonlocal left
            results[at] = result
            left -= 1
            if not left:
                settle(future, DeleteGroupsResponse(tuple(item for item in results if item is not None)))

        if not results:
            future.set_result(DeleteGroupsResponse(()))
        for at, group_id in enumerate(request.group_ids):
            led = self._active_for_offsets(group_id)
            if isinstance(led, Led):
                waiter = self._wait(partial(deleted, at))
                self._perform(led, led.shard.delete_group(group_id, waiter, self._now()))
            else:
                deleted(at, DeletedGroup(group_id, led))
        return future

    def gauges(self) -> GroupGauges:
        """Looks at each group: for scraping, not for hot paths."""
        groups: dict[str, int] = {}
        members = offsets = loaded = 0
        for led in self._actives():
            loaded += 1
            state = led.shard.state
            members += state.population.members
            offsets += state.population.offsets
            for group in state.groups.values():
                groups[group.state.value] = groups.get(group.state.value, 0) + 1
        return GroupGauges(groups, members, offsets, loaded, len(self._led) - loaded)

    # --- Effects ------------------------------------------------------------------------------------

    def _active_for_offsets(self, group_id: str) -> Led[Shard] | ErrorCode:
        if group_id_fault(group_id, may_be_empty=True) is not None:
            return ErrorCode.INVALID_GROUP_ID
        return self._active(group_id)

    def _do(self, led: Led[Shard], effect: Effect) -> None:
        match effect:
            case Answer(waiter, response):
                self._answer(waiter, response)
            case Append() | AppendMarker():
                self._append(led, effect.token, batch_of(effect))


def _role(led: Led[Shard]) -> Role:
    return Role(led.partition, led.epoch)


def client_host(peer: str) -> str:
    """A member's host as Kafka's records hold it, without the port: ``/127.0.0.1``. ``peer`` may be a gRPC target,
    ``ipv4:127.0.0.1:9092`` or ``ipv6:%5B::1%5D:9092``."""
    text = unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")
    host, _, port = text.rpartition(":")
    return "/" + (host if host and port.isdigit() else text).strip("[]")
