"""All replicas of a node: applies the controller's decisions, serves clients and followers, follows leaders.

The shell around :mod:`tidelog.replication.partition.partition`. One thread: the event loop's. Appends and reads happen
during the call; waiters wait on futures, which the awaited event resolves.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os.path
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    UNASSIGNED_DIRECTORY,
    BrokerEpoch,
    NodeId,
    Offset,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.proto.calls.api import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tidelog.proto.calls.transaction_api import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidelog.proto.transport.frames import FetchRequest, FetchResponse, ProduceRequest
from tidelog.proto.transport.network import CallContext, Connection
from tidelog.replication.coordinators.coordinating import Coordinating
from tidelog.replication.flushing import Flusher, RunBlocking, run_inline
from tidelog.replication.following.following import Following
from tidelog.replication.following.throttle import Throttle
from tidelog.replication.isr_changes import AlterPartition, IsrChanges
from tidelog.replication.partition.isr import IsrProposal
from tidelog.replication.partition.leader import BrokerEpochOf, RackOf
from tidelog.replication.partition.partition import Partition, RoleChange
from tidelog.replication.partition.partition_state import PartitionState
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.settings import ReplicationSettings
from tidelog.replication.partition.topic_traffic import TopicTraffic
from tidelog.replication.partition.waiters import Produced
from tidelog.replication.roles import RoleListener, Roles
from tidelog.replication.serving.consuming import Consuming
from tidelog.replication.serving.importing import Importing
from tidelog.replication.serving.lookups import describe_producers, epoch_ends, list_offsets
from tidelog.replication.serving.marking import Marking
from tidelog.replication.serving.producing import Producing
from tidelog.replication.serving.purging import PurgeCount, delete_records
from tidelog.replication.serving.session import ReplicaSession
from tidelog.replication.serving.standing import Standing
from tidelog.replication.serving.verifying import Verify
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log_manager import LogManager

log = logging.getLogger(__name__)

SLICE_MS: Final = 20
"""How long :meth:`ReplicaManager.apply_in_slices` works before it yields to others."""


class ReplicaManager:
    """See the module. Implements what sessions, fetchers and flushers need of their node."""

    def __init__(
        self,
        node_id: NodeId,
        logs: LogManager,
        clock: Clock,
        rng: random.Random,
        settings: ReplicationSettings,
        *,
        connect: Callable[[NodeId], Connection | None],
        alter_partition: AlterPartition,
        broker_epoch_of: BrokerEpochOf,
        has_directory: Callable[[TopicIdPartition, NodeId], bool],
        on_fatal: Callable[[BaseException], None],
        run_blocking: RunBlocking = run_inline,
        verify: Verify | None = None,
        rack_of: RackOf | None = None,
    ) -> None:
        """With ``rack_of``, consumers are sent to replicas in their racks (``replica.selector.class``). Without
        ``verify`` no transaction can begin here. ``broker_epoch_of`` returns -1 for a broker that is unknown, fenced or
        shutting down, and for this node its own epoch. ``has_directory``: whether another broker's replica of a
        partition is on a working directory, as far as this node knows. ``alter_partition`` makes one attempt.
        ``on_fatal`` gets bugs in this manager's tasks: the node must stop."""
        self.node_id = node_id
        self.clock = clock
        self.rng = rng
        self.settings = settings
        self.broker_epoch_of = broker_epoch_of
        self._has_directory = has_directory
        self.connect = connect
        self._logs = logs
        self._on_fatal = on_fatal
        self._replicas: dict[TopicIdPartition, Replica] = {}
        self._by_name: dict[TopicPartition, Replica] = {}
        self.topics: Final[WeakValueDictionary[TopicId, TopicTraffic]] = WeakValueDictionary()
        """Traffic of topics with replicas here."""
        self._lost: dict[TopicIdPartition, PartitionState] = {}
        """Replicas without an open log, because their directory has failed."""
        self.following = Following(self, self._spawn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sessions: set[ReplicaSession] = set()
        self._bytes_sent_before = 0
        self._unsettled: dict[Replica, None] = {}
        self._flushing_logs: dict[Replica, None] = {}
        """Replicas with ``flush.messages`` or ``flush.ms``; the log manager syncs the others on its own schedule."""
        self._changed_high_watermarks: dict[Replica, None] = {}
        self._high_watermarks = logs.high_watermarks()
        self._purges = PurgeCount(settings.delete_records_waiters_max)
        self._running = False
        self.leader_throttle: Final = Throttle()
        self.follower_throttle: Final = Throttle()
        self.isr_changes = IsrChanges(alter_partition, settings, rng, self._isr_settled)
        self.producing = Producing(
            self._replicas,
            clock,
            waiters_max=settings.produce_waiters_max,
            appended=self._appended,
            failed=self.disk_failed,
            verify=verify,
            spawn=self._spawn,
        )
        self.marking = Marking(
            self._by_name, clock, self.producing.budget, appended=self._appended, failed=self.disk_failed
        )
        self.consuming = Consuming(self._replicas, settings, self.disk_failed, rack_of)
        self.coordinating = Coordinating(self._by_name, clock, appended=self._appended, failed=self.disk_failed)
        self._roles = Roles()
        self._flusher = Flusher(run_blocking, self._flushed, self.disk_failed, on_fatal)
        self.importing = Importing(
            self._replicas,
            clock,
            self.coordinating.committed,
            appended=self._appended,
            flush=self._flusher.request,
            run_blocking=run_blocking,
            failed=self.disk_failed,
        )
        self.isr_shrinks = 0
        self.isr_expands = 0

    def set_throttles(self, leader_rate: int, follower_rate: int) -> None:
        """Set the bytes per second for throttled replicas; ``LONG_MAX`` means no limit. Takes effect within
        :data:`tidelog.replication.following.throttle.CHECK_MS_MAX`."""
        self.leader_throttle.set_rate(leader_rate)
        self.follower_throttle.set_rate(follower_rate)

    # --- lifecycle ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to follow, to check for lag and to send ISR changes to the controller."""
        assert not self._running
        self._running = True
        self._spawn(self.isr_changes.run(), "ISR changes")
        self._spawn(self._watch_lag(), "follower lag")
        self._spawn(self._flush_by_time(), "flush.ms")
        self.following.start()

    async def stop(self) -> None:
        """Stop serving and following; waiters get NOT_LEADER_OR_FOLLOWER. The logs stay open."""
        self._running = False
        self.fence()
        tasks = tuple(self._tasks)
        self._cancel_all()
        if tasks:
            await asyncio.wait(tasks)
        await self._flusher.close()

    def kill(self) -> None:
        """Drop everything immediately: tasks end, without answers or writes."""
        self._running = False
        self._cancel_all()
        self._flusher.kill()

    def _cancel_all(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        self.following.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.critical("task %s ended", task.get_name(), exc_info=bug)
            self._on_fatal(bug)

    # --- what the controller decided ------------------------------------------------------------------

    @property
    def replicas(self) -> Mapping[TopicIdPartition, Replica]:
        return self._replicas

    def watch_roles(self, topic: str, listener: RoleListener) -> None:
        """Tell ``listener`` when this node starts and stops leading partitions of ``topic``. Call it before the first
        ``apply``."""
        self._roles.watch(topic, listener)

    def partition(self, key: TopicIdPartition) -> Partition | None:
        replica = self._replicas.get(key)
        return None if replica is None else replica.partition

    def partition_named(self, topic: str, partition: int) -> Partition | None:
        replica = self._by_name.get(TopicPartition(topic, partition))
        return None if replica is None else replica.partition

    def apply(self, changes: Sequence[PartitionState]) -> None:
        """Apply partitions' states, each fenced by its leader and partition epoch.

        Work is proportional to ``changes``. A log that cannot be opened takes only that replica offline.
        """
        now_ms = self.clock.monotonic_ms()
        for state in changes:
            self._apply(state, now_ms)

    async def apply_in_slices(self, changes: Iterable[PartitionState]) -> None:
        """Call :meth:`apply` for many partitions without blocking the event loop for long."""
        begun = self.clock.monotonic_ms()
        for state in changes:
            now_ms = self.clock.monotonic_ms()
            if now_ms - begun >= SLICE_MS:
                await asyncio.sleep(0)
                begun = self.clock.monotonic_ms()
            self._apply(state, now_ms)

    def _apply(self, state: PartitionState, now_ms: int) -> None:
        replica = self._replicas.get(state.key)
        try:
            if replica is None:
                opened = self._open(state)
                if opened is None:
                    return
                replica = opened
                change = replica.partition.begin(now_ms)
            else:
                before = replica.partition.state
                change = replica.partition.update(state, now_ms)
                if change is not RoleChange.STALE and state.config is not before.config:
                    self._config_changed(replica)
        except LogDirFailed as failure:
            if replica is None:
                self._lost[state.key] = state
                log.error("%s-%d cannot be opened: %s", state.topic, state.partition, failure)
            else:
                self.disk_failed(replica, failure)
            return
        self._role_changed(replica, change, now_ms)

    def _open(self, state: PartitionState) -> Replica | None:
        """Open or create the log. ``None`` if its directory is known to have failed."""
        directory = None if state.directory_id == UNASSIGNED_DIRECTORY else state.directory_id
        opened = self._logs.get_or_create(state.topic, state.topic_id, state.partition, state.config, directory)
        partition = Partition(
            self.node_id,
            opened,
            state,
            high_watermark=self._high_watermarks.get(state.key, Offset(0)),
            lag_time_max_ms=self.settings.replica_lag_time_max_ms,
            broker_epoch_of=functools.partial(self._replica_epoch_of, state.key),
        )
        traffic = self.topics.get(state.topic_id)
        if traffic is None:
            traffic = self.topics[state.topic_id] = TopicTraffic(state.topic)
        replica = Replica(partition, self._changed_high_watermarks, traffic)
        self._lost.pop(state.key, None)
        self._replicas[state.key] = replica
        self._by_name[TopicPartition(state.topic, state.partition)] = replica
        self._config_changed(replica)
        return replica

    def _replica_epoch_of(self, key: TopicIdPartition, node: NodeId) -> BrokerEpoch:
        """Return the epoch of the broker that holds a replica. Also -1 if the replica's directory has failed: then it
        cannot join the ISR, and nothing waits for it."""
        return self.broker_epoch_of(node) if self._has_directory(key, node) else BrokerEpoch(-1)

    def _config_changed(self, replica: Replica) -> None:
        config = replica.partition.state.config
        replica.partition.log.update_config(config)
        at, node = replica.key.partition, self.node_id
        replica.leader_throttled = config.leader_replication_throttled_replicas.has(at, node)
        replica.follower_throttled = config.follower_replication_throttled_replicas.has(at, node)
        if config.flush_messages != LONG_MAX or config.flush_ms != LONG_MAX:
            self._flushing_logs[replica] = None
        else:
            self._flushing_logs.pop(replica, None)

    def _role_changed(self, replica: Replica, change: RoleChange, now_ms: int) -> None:
        partition = replica.partition
        match change:
            case RoleChange.STALE:
                return
            case RoleChange.SAME:
                return
            case RoleChange.LEADER:
                self.following.unfollow(replica.key)
                replica.left_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                log.debug(
                    "leads %s from epoch %d at %d", replica.key, partition.leader_epoch, partition.log.log_end_offset
                )
            case RoleChange.FOLLOWER:
                replica.left_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                self._unsettled.pop(replica, None)
                self.following.follow(replica)
            case RoleChange.IDLE:
                self.following.unfollow(replica.key)
                replica.left_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                self._unsettled.pop(replica, None)
            case RoleChange.ISR:
                pass
        if partition.leading is not None:
            self._unsettled[replica] = None
            self._progressed(replica, now_ms)
            proposal = partition.propose_recovered()
            if proposal is not None:
                self.isr_change_wanted(replica, proposal)
            self._reconsider(replica, now_ms)
        self._roles.look(replica)

    def remove(self, partitions: Sequence[TopicIdPartition], delete: bool) -> None:
        """Stop serving replicas; ``delete`` removes their logs as well."""
        for key in partitions:
            self.following.unfollow(key)
            self._lost.pop(key, None)
            replica = self._replicas.pop(key, None)
            if replica is None:
                continue
            partition = replica.partition
            name = TopicPartition(partition.state.topic, partition.state.partition)
            if self._by_name.get(name) is replica:
                del self._by_name[name]
            for known in (self._unsettled, self._flushing_logs, self._changed_high_watermarks):
                known.pop(replica, None)
            self._high_watermarks.pop(key, None)
            partition.leave()
            self._roles.look(replica)
            replica.left_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if delete and not partition.offline:
                try:
                    self._logs.delete(partition.log)
                except LogDirFailed as failure:
                    self.disk_failed(replica, failure)

    def serve_nearby(self, serves: bool) -> None:
        """Set whether followers here serve consumers in their rack."""
        self.consuming.serves_nearby = serves
        if not serves:
            for replica in self._replicas.values():
                replica.wake_consumers()

    def fence(self) -> None:
        """Stop leading all partitions until the controller names this broker leader under a newer epoch."""
        for replica in self._replicas.values():
            if replica.partition.leading is not None:
                replica.partition.resign()
                self._roles.look(replica)
                replica.left_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._unsettled.clear()

    def brokers_changed(self, nodes: Iterable[NodeId]) -> None:
        """Handle brokers that were fenced, unfenced, lost a directory, or came back under a newer epoch.

        A broker that is live now may join ISRs: a follower that named its position while fenced does not repeat it
        while idle. The high watermark no longer waits for a broker that is not live, or for a replica on a failed
        directory. Only partitions that are not settled are affected.
        """
        for node in nodes:
            if self.broker_epoch_of(node) >= 0:
                self.following.retry_now(node)
        now_ms = self.clock.monotonic_ms()
        for replica in tuple(self._unsettled):
            self._progressed(replica, now_ms)
            self._reconsider(replica, now_ms)

    # --- following ------------------------------------------------------------------------------------

    def own_broker_epoch(self) -> BrokerEpoch:
        return self.broker_epoch_of(self.node_id)

    def follower_flush(self, replica: Replica, done: Callable[[], None]) -> None:
        self._flusher.request(replica, done)

    # --- serving ----------------------------------------------------------------------------------------

    def produce(self, request: ProduceRequest, *, first_protocol: bool = False) -> Produced:
        """See :meth:`tidelog.replication.serving.producing.Producing.produce`."""
        return self.producing.produce(request, first_protocol=first_protocol)

    def write_markers(self, request: WriteTxnMarkersRequest) -> asyncio.Future[WriteTxnMarkersResponse]:
        """See :meth:`tidelog.replication.serving.marking.Marking.write`."""
        return self.marking.write(request)

    def describe_producers(self, request: DescribeProducersRequest) -> DescribeProducersResponse:
        """Return producers and their open transactions, for partitions led here."""
        return describe_producers(self._by_name, request, self.node_id)

    def fetch(self, request: FetchRequest, *, in_files: bool = False) -> asyncio.Future[FetchResponse]:
        """Answer a consumer's fetch; see :meth:`tidelog.replication.serving.consuming.Consuming.fetch`."""
        return self.consuming.fetch(request, in_files=in_files)

    def fetch_standing(
        self, standing: Standing, request: FetchRequest, *, in_files: bool = False
    ) -> asyncio.Future[FetchResponse]:
        """Answer a session's fetch; see :meth:`tidelog.replication.serving.consuming.Consuming.fetch_standing`."""
        return self.consuming.fetch_standing(standing, request, in_files=in_files)

    def replica_session(self, context: CallContext) -> ReplicaSession:
        """Return the leader's side of one follower's stream."""
        session = ReplicaSession(self)
        self._sessions.add(session)
        return session

    def session_closed(self, session: ReplicaSession) -> None:
        self._sessions.discard(session)
        self._bytes_sent_before += session.bytes_sent

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Return offsets by time, for partitions led here."""
        return list_offsets(self._by_name, request, self.disk_failed)

    def offset_for_leader_epoch(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        """Return where epochs end, for partitions led here."""
        return epoch_ends(self._replicas, request)

    def delete_records(self, request: DeleteRecordsRequest) -> Awaitable[DeleteRecordsResponse]:
        """Move log starts now; the answer follows when every live replica has done so, or at the timeout."""
        return delete_records(self._by_name, request, self._purges, self.disk_failed)

    # --- what happens in between ------------------------------------------------------------------------

    def _appended(self, replica: Replica) -> None:
        """Handle the growth of a leader's log."""
        partition = replica.partition
        if partition.leading is not None and partition.leading.followers:
            self._unsettled[replica] = None
        replica.log_moved()
        replica.settle()
        if replica in self._flushing_logs and not partition.offline and partition.log.flush_due(self.clock.now_ms()):
            self._flusher.request(replica)

    def _progressed(self, replica: Replica, now_ms: int) -> None:
        """Advance the high watermark if possible."""
        replica.partition.advance(now_ms)
        replica.settle()

    def _flushed(self, replica: Replica) -> None:
        self._progressed(replica, self.clock.monotonic_ms())

    def isr_change_wanted(self, replica: Replica, proposal: IsrProposal) -> None:
        leading = replica.partition.leading
        assert leading is not None
        if len(proposal.isr) > len(leading.isr.committed):
            self.isr_expands += 1
        elif len(proposal.isr) < len(leading.isr.committed):
            self.isr_shrinks += 1
        log.info("%s: asks for ISR %s instead of %s", replica.key, proposal.isr, leading.isr.committed)
        self.isr_changes.submit(replica, proposal)

    def _isr_settled(self, replica: Replica) -> None:
        """Handle a committed or refused ISR change: recompute, and check whether another one is due."""
        now_ms = self.clock.monotonic_ms()
        self._progressed(replica, now_ms)
        self._reconsider(replica, now_ms)

    def _reconsider(self, replica: Replica, now_ms: int) -> None:
        """Ask to admit a follower that is in sync but idle, so it will not name its position again: while it caught up,
        another change was pending, or it was fenced."""
        proposal = replica.partition.propose_waiting(now_ms)
        if proposal is not None:
            self.isr_change_wanted(replica, proposal)

    async def _watch_lag(self) -> None:
        """Check unsettled partitions; idle ones cost nothing."""
        while True:
            await asyncio.sleep(self.settings.replica_lag_time_max_ms / 2000)
            self.check_lag()

    def check_lag(self) -> None:
        """Drop lagging replicas from ISRs, and let high watermarks pass replicas that no longer keep up."""
        now_ms = self.clock.monotonic_ms()
        for replica in tuple(self._unsettled):
            leading = replica.partition.leading
            if leading is None or leading.is_settled():
                del self._unsettled[replica]
                continue
            proposal = replica.partition.propose_shrink(now_ms)
            if proposal is not None:
                self.isr_change_wanted(replica, proposal)
            self._progressed(replica, now_ms)
            self._reconsider(replica, now_ms)

    async def _flush_by_time(self) -> None:
        """Flush records that have waited ``flush.ms``, or are in a full segment, in logs with flush settings."""
        while True:
            await asyncio.sleep(self.settings.log_flush_scheduler_interval_ms / 1000)
            now_ms = self.clock.now_ms()
            for replica in tuple(self._flushing_logs):
                if not replica.partition.offline and replica.partition.log.flush_due(now_ms):
                    self._flusher.request(replica)

    # --- directories and checkpoints --------------------------------------------------------------------

    def disk_failed(self, replica: Replica, failure: LogDirFailed) -> None:
        """Handle a disk failure during a call: everything in that directory goes offline, the rest continues."""
        log.error("%s: %s", replica.key, failure)
        self._fail([replica])
        self.directory_failed(failure.directory)

    def directory_failed(self, directory: str) -> None:
        """Take everything in a failed log directory, given by path, offline."""
        self._fail(
            [known for known in self._replicas.values() if os.path.dirname(known.partition.log.directory) == directory]
        )

    def _fail(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            if replica.partition.offline:
                continue
            replica.partition.fail()
            self.following.unfollow(replica.key)
            self._unsettled.pop(replica, None)
            self._flushing_logs.pop(replica, None)
            self._roles.look(replica)
            replica.left_role(ErrorCode.KAFKA_STORAGE_ERROR)

    def offline_partitions(self) -> Sequence[TopicIdPartition]:
        """Return the replicas that this node should have and cannot serve."""
        return [
            *self._lost,
            *(key for key, replica in self._replicas.items() if replica.partition.offline),
        ]

    @property
    def damaged_answers(self) -> int:
        """Number of leaders' answers that followers here refused because they were not whole batches."""
        return sum(fetcher.damaged_answers for fetcher in self.following.fetchers.values())

    @property
    def bytes_fetched(self) -> int:
        """Bytes that this node's followers received."""
        return sum(fetcher.bytes_received for fetcher in self.following.fetchers.values())

    @property
    def bytes_sent(self) -> int:
        """Record bytes sent to other nodes' followers, including streams that have ended."""
        return self._bytes_sent_before + sum(session.bytes_sent for session in self._sessions)

    def high_watermarks(self) -> Mapping[TopicIdPartition, Offset]:
        """Return every replica's high watermark, for the checkpoint. For replicas not opened yet, the checkpointed
        value."""
        for replica in self._changed_high_watermarks:
            self._high_watermarks[replica.key] = replica.partition.high_watermark
        self._changed_high_watermarks.clear()
        return self._high_watermarks
