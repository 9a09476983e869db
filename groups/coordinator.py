"""The group coordinator of a node: the shell around the partitions of ``__consumer_offsets`` that it leads.

Everything is on the event loop. A handler does all that has an order before it returns its future; one timer
serves all partitions; loading runs beside, in slices. What a partition decides is in
:mod:`tidelog.groups.shard`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from tidelog.groups.adding import Adding, AddPartitions, Role
from tidelog.groups.batches import batch_of
from tidelog.groups.counters import GroupCounters, GroupGauges
from tidelog.groups.effects import Answer, Append, AppendMarker, Effect, Token
from tidelog.groups.routing import group_id_fault, partition_for
from tidelog.groups.settings import GroupSettings
from tidelog.groups.shard import Shard
from tidelog.groups.transactional import adding_error, txn_commit_answer
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId
from tidelog.model.moment import Moment
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
from tidelog.replication.coordinator_loading import load
from tidelog.replication.coordinator_log import CoordinatorLog

logger = logging.getLogger(__name__)

R = TypeVar("R")

_LEADER_ERRORS: Final = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
}
_LOAD_AGAIN_MS: Final = 1_000
_LOAD_AGAIN_MS_MAX: Final = 30_000


class _Standing(enum.Enum):
    LOADING = enum.auto()
    FAILED = enum.auto()
    """Loading failed, and is tried again."""
    ACTIVE = enum.auto()


class _Led:
    """One partition of ``__consumer_offsets`` under one leader epoch."""

    __slots__ = ("epoch", "loading", "partition", "shard", "standing")

    def __init__(self, partition: int, epoch: LeaderEpoch, shard: Shard) -> None:
        self.partition = partition
        self.epoch = epoch
        self.shard = shard
        self.standing = _Standing.LOADING
        self.loading: asyncio.Task[None] | None = None

    @property
    def role(self) -> Role:
        return Role(self.partition, self.epoch)


class GroupCoordinator:
    """See the module. ``context.peer`` is the host that members are described with."""

    def __init__(
        self,
        node_id: NodeId,
        settings: GroupSettings,
        clock: Clock,
        rng: random.Random,
        log: CoordinatorLog,
        on_fatal: Callable[[BaseException], None],
        add_partitions: AddPartitions,
        partitions: int | None = None,
    ) -> None:
        self.counters = GroupCounters()
        self._node_id = node_id
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._log = log
        self._on_fatal = on_fatal
        self._partitions = settings.offsets_topic_num_partitions if partitions is None else partitions
        self._adding = Adding(add_partitions, on_fatal)
        self._led: dict[int, _Led] = {}
        self._waiters: dict[int, Callable[[Any], None]] = {}
        self._next_waiter = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._stopped = False

    # --- Life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Nothing runs before the first election."""

    async def stop(self) -> None:
        """Answer everybody who waits NOT_COORDINATOR and end."""
        loading = [led.loading for led in self._led.values() if led.loading is not None]
        for partition in list(self._led):
            self.resigned(partition)
        self.kill()
        await asyncio.gather(*loading, return_exceptions=True)

    def kill(self) -> None:
        """Drop everything where it stands; nobody is answered."""
        self._stopped = True
        for led in self._led.values():
            if led.loading is not None:
                led.loading.cancel()
        self._led.clear()
        self._adding.kill()
        self._waiters.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def settings(self) -> GroupSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: GroupSettings) -> None:
        self._settings = settings
        for led in self._led.values():
            led.shard.set_settings(settings)

    def set_partition_count(self, partitions: int) -> None:
        """How many partitions ``__consumer_offsets`` really has."""
        self._partitions = partitions

    def partition_for(self, group_id: str) -> int:
        return partition_for(group_id, self._partitions)

    # --- Leadership ---------------------------------------------------------------------------------

    def elected(self, partition: int, leader_epoch: LeaderEpoch) -> None:
        """This node leads the partition from now on: load it. An epoch that is known, or older, changes nothing."""
        known = self._led.get(partition)
        if self._stopped or (known is not None and known.epoch >= leader_epoch):
            return
        self.resigned(partition)
        led = _Led(partition, leader_epoch, self._new_shard(partition, leader_epoch))
        self._led[partition] = led
        led.loading = asyncio.get_running_loop().create_task(self._load(led))
        led.loading.add_done_callback(self._load_ended)

    def resigned(self, partition: int, leader_epoch: LeaderEpoch | None = None) -> None:
        """This node does not lead the partition any longer, as of ``leader_epoch`` (None: whatever it knows)."""
        led = self._led.get(partition)
        if led is None or (leader_epoch is not None and led.epoch > leader_epoch):
            return
        del self._led[partition]
        self._adding.resigned(led.role)
        if led.loading is not None:
            led.loading.cancel()
        self._perform(led, led.shard.resign(self._now()))

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Forget what is committed of topics that are no more."""
        topics = tuple(names)
        for led in list(self._led.values()):
            if led.standing is _Standing.ACTIVE:
                self._perform(led, led.shard.topics_deleted(topics, self._now()))

    # --- Membership ---------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, context: CallContext) -> asyncio.Future[JoinGroupResponse]:
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return _done(JoinGroupResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if not isinstance(led, _Led):
            return _done(JoinGroupResponse(led, member_id=request.member_id))
        waiter, future = self._waiter(JoinGroupResponse)
        self._perform(led, led.shard.join(request, client_host(context.peer), waiter, self._now()))
        return future

    def sync(self, request: SyncGroupRequest, context: CallContext) -> asyncio.Future[SyncGroupResponse]:
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return _done(SyncGroupResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if not isinstance(led, _Led):
            return _done(SyncGroupResponse(led))
        waiter, future = self._waiter(SyncGroupResponse)
        self._perform(led, led.shard.sync(request, waiter, self._now()))
        return future

    def heartbeat(self, request: HeartbeatRequest, context: CallContext) -> asyncio.Future[HeartbeatResponse]:
        """While the group is loaded, all is well: sessions begin anew after it (as Kafka)."""
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return _done(HeartbeatResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if isinstance(led, _Led):
            return _done(led.shard.heartbeat(request, self._now()))
        return _done(HeartbeatResponse(ErrorCode.NONE if led is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else led))

    def leave(self, request: LeaveGroupRequest, context: CallContext) -> asyncio.Future[LeaveGroupResponse]:
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return _done(LeaveGroupResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if not isinstance(led, _Led):
            return _done(LeaveGroupResponse(led))
        response, effects = led.shard.leave(request, self._now())
        self._perform(led, effects)
        return _done(response)

    # --- Offsets ------------------------------------------------------------------------------------

    def commit_offsets(
        self, request: OffsetCommitRequest, context: CallContext
    ) -> asyncio.Future[OffsetCommitResponse]:
        led = self._active_for_offsets(request.group_id)
        if not isinstance(led, _Led):
            results = (OffsetCommitResult(item.topic, item.partition, led) for item in request.partitions)
            return _done(OffsetCommitResponse(tuple(results)))
        waiter, future = self._waiter(OffsetCommitResponse)
        self._perform(led, led.shard.commit_offsets(request, waiter, self._now()))
        return future

    def fetch_offsets(self, request: OffsetFetchRequest, context: CallContext) -> asyncio.Future[OffsetFetchResponse]:
        groups = tuple(self._fetch(group, request.require_stable) for group in request.groups)
        return _done(OffsetFetchResponse(groups))

    def _fetch(self, group: OffsetFetchGroup, require_stable: bool) -> OffsetFetchResult:
        led = self._active_for_offsets(group.group_id)
        if isinstance(led, _Led):
            return led.shard.fetch_offsets(group, require_stable=require_stable)
        failed = tuple(CommittedOffset(item.topic, item.partition, led) for item in group.partitions)
        return OffsetFetchResult(group.group_id, led, failed)

    def delete_offsets(
        self, request: OffsetDeleteRequest, context: CallContext
    ) -> asyncio.Future[OffsetDeleteResponse]:
        fault = group_id_fault(request.group_id)
        if fault is not None:
            return _done(OffsetDeleteResponse(ErrorCode.INVALID_GROUP_ID, error_message=fault))
        led = self._active(request.group_id)
        if not isinstance(led, _Led):
            return _done(OffsetDeleteResponse(led))
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
            return _done(txn_commit_answer(request, ErrorCode.INVALID_GROUP_ID, fault))
        led = self._active(request.group_id)
        if not isinstance(led, _Led):
            return _done(txn_commit_answer(request, led))
        waiter, future = self._waiter(TxnOffsetCommitResponse)
        if led.shard.has_open(request.producer_id, request.producer_epoch):
            self._perform(led, led.shard.commit_transactional(request, waiter, self._now()))
        elif self._adding.waiting >= self._settings.appends_max:
            self._answer(waiter, txn_commit_answer(request, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self._adding.ask(led.role, request, partial(self._added, led, request, waiter))
        return future

    def _added(self, led: _Led, request: TxnOffsetCommitRequest, waiter: int, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self._perform(led, led.shard.commit_transactional(request, waiter, self._now()))
        elif error is ErrorCode.NOT_COORDINATOR and self._led.get(led.partition) is not led:
            self._answer(waiter, txn_commit_answer(request, error))
        else:
            self._answer(waiter, txn_commit_answer(request, adding_error(error)))

    def complete_transaction(self, partition: int, marker: TransactionMarker) -> asyncio.Future[ErrorCode]:
        """Write a transaction's marker to one partition, and do what it says of the offsets there. Errors as a
        partition's leader tells them (``KafkaApis.handleWriteTxnMarkersRequest``)."""
        led = self._led.get(partition)
        if led is None or led.standing is not _Standing.ACTIVE:
            return _done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        waiter = self._wait(lambda error: _set(future, _LEADER_ERRORS.get(error, error)))
        self._adding.marker(led.role, marker)
        self._perform(led, led.shard.complete(marker, waiter, self._now()))
        return future

    # --- Administration -----------------------------------------------------------------------------

    def list_groups(self, request: ListGroupsRequest, context: CallContext) -> asyncio.Future[ListGroupsResponse]:
        """The groups that are loaded; COORDINATOR_LOAD_IN_PROGRESS beside them while others are not."""
        found: list[ListedGroup] = []
        error = ErrorCode.NONE
        for led in self._led.values():
            if led.standing is _Standing.ACTIVE:
                found += led.shard.list_groups(request.states, request.types)
            else:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return _done(ListGroupsResponse(error, tuple(found)))

    def describe(self, request: DescribeGroupsRequest, context: CallContext) -> asyncio.Future[DescribeGroupsResponse]:
        return _done(DescribeGroupsResponse(tuple(self._describe(group_id) for group_id in request.group_ids)))

    def _describe(self, group_id: str) -> DescribedGroup:
        led = self._active_for_offsets(group_id)
        return led.shard.describe(group_id) if isinstance(led, _Led) else DescribedGroup(group_id, led)

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
                _set(future, DeleteGroupsResponse(tuple(item for item in results if item is not None)))

        if not results:
            future.set_result(DeleteGroupsResponse(()))
        for at, group_id in enumerate(request.group_ids):
            led = self._active_for_offsets(group_id)
            if isinstance(led, _Led):
                waiter = self._wait(partial(deleted, at))
                self._perform(led, led.shard.delete_group(group_id, waiter, self._now()))
            else:
                deleted(at, DeletedGroup(group_id, led))
        return future

    def gauges(self) -> GroupGauges:
        """Looks at each group: for scraping, not for hot paths."""
        groups: dict[str, int] = {}
        members = offsets = loaded = 0
        for led in self._led.values():
            if led.standing is not _Standing.ACTIVE:
                continue
            loaded += 1
            state = led.shard.state
            members += state.population.members
            offsets += state.population.offsets
            for group in state.groups.values():
                groups[group.state.value] = groups.get(group.state.value, 0) + 1
        return GroupGauges(groups, members, offsets, loaded, len(self._led) - loaded)

    # --- Effects ------------------------------------------------------------------------------------

    def _active(self, group_id: str) -> _Led | ErrorCode:
        led = self._led.get(self.partition_for(group_id))
        if led is None:
            return ErrorCode.NOT_COORDINATOR
        match led.standing:
            case _Standing.ACTIVE:
                return led
            case _Standing.LOADING:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            case _Standing.FAILED:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _active_for_offsets(self, group_id: str) -> _Led | ErrorCode:
        if group_id_fault(group_id, may_be_empty=True) is not None:
            return ErrorCode.INVALID_GROUP_ID
        return self._active(group_id)

    def _waiter(self, answer: type[R]) -> tuple[int, asyncio.Future[R]]:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        return self._wait(partial(_set, future)), future

    def _wait(self, answered: Callable[[Any], None]) -> int:
        waiter = self._next_waiter
        self._next_waiter += 1
        self._waiters[waiter] = answered
        return waiter

    def _perform(self, led: _Led, effects: list[Effect]) -> None:
        """Do what the core asked for, in order; then see when it has to be asked again."""
        for effect in effects:
            match effect:
                case Answer(waiter, response):
                    self._answer(waiter, response)
                case Append() | AppendMarker():
                    self._append(led, effect)
        self._set_timer(led.shard.next_deadline())

    def _answer(self, waiter: int, response: Any) -> None:
        answered = self._waiters.pop(waiter, None)
        if answered is not None:  # else this was killed meanwhile
            answered(response)

    def _append(self, led: _Led, effect: Append | AppendMarker) -> None:
        self.counters.appends += 1
        outcome = asyncio.ensure_future(self._log.append(led.partition, led.epoch, batch_of(effect)))
        outcome.add_done_callback(partial(self._appended, led, effect.token))

    def _appended(self, led: _Led, token: Token, outcome: asyncio.Future[ErrorCode]) -> None:
        if self._led.get(led.partition) is not led or outcome.cancelled():
            return
        failure = outcome.exception()
        if failure is not None:
            self._on_fatal(failure)
            return
        error = outcome.result()
        if error is not ErrorCode.NONE:
            self.counters.failed_appends += 1
        if error is ErrorCode.NOT_COORDINATOR:
            self.resigned(led.partition)
        else:
            self._perform(led, led.shard.appended(token, error, self._now()))

    # --- Time ---------------------------------------------------------------------------------------

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.now_ms())

    def _set_timer(self, deadline: int | None) -> None:
        """See that the one timer goes off by ``deadline``."""
        if deadline is None or self._stopped or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        delay_s = max(deadline - self._clock.monotonic_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._now()
        for led in list(self._led.values()):
            deadline = led.shard.next_deadline()
            if deadline is not None and deadline <= now.monotonic_ms and led.standing is _Standing.ACTIVE:
                self._perform(led, led.shard.tick(now))
            else:
                self._set_timer(deadline)

    # --- Loading ------------------------------------------------------------------------------------

    def _new_shard(self, partition: int, epoch: LeaderEpoch) -> Shard:
        bytes_max = self._log.batch_bytes_max(partition)
        return Shard(epoch, self._settings, self._rng, bytes_max, counters=self.counters)

    async def _load(self, led: _Led) -> None:
        """Load the partition; try again for as long as it is led and cannot be read."""
        delay_ms = _LOAD_AGAIN_MS
        while True:
            began_ms = self._clock.monotonic_ms()
            bytes_max = self._settings.offsets_load_buffer_size
            fault = await load(led.shard.replay, self._log, led.partition, led.epoch, bytes_max)
            if fault is None:
                break
            self.counters.failed_loads += 1
            logger.error("partition %d of the groups' offsets cannot be loaded: %s", led.partition, fault)
            led.standing = _Standing.FAILED
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, _LOAD_AGAIN_MS_MAX)
            led.shard = self._new_shard(led.partition, led.epoch)
        self.counters.loads += 1
        self.counters.load_ms += self._clock.monotonic_ms() - began_ms
        self.counters.loaded_records += led.shard.replayed
        self.counters.passed_over_records += led.shard.passed_over
        led.loading = None
        led.standing = _Standing.ACTIVE
        self._perform(led, led.shard.loaded(self._now()))

    def _load_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            failure = task.exception()
            if failure is not None:
                self._on_fatal(failure)


def client_host(peer: str) -> str:
    """A member's host as Kafka's records hold it, without the port: ``/127.0.0.1``. ``peer`` may be a gRPC target,
    ``ipv4:127.0.0.1:9092`` or ``ipv6:%5B::1%5D:9092``."""
    text = unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")
    host, _, port = text.rpartition(":")
    return "/" + (host if host and port.isdigit() else text).strip("[]")


def _done(response: R) -> asyncio.Future[R]:
    future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    future.set_result(response)
    return future


def _set(future: asyncio.Future[R], response: R) -> None:
    """Whoever asked may have gone."""
    if not future.done():
        future.set_result(response)
