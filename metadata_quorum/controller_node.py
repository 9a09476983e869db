"""A node's controller role: the asyncio shell around quorum, controller and publisher. It decides nothing.

Requests are decided one at a time on the event loop. A decision's records are proposed before the next decision, and
its answer leaves once the quorum has committed them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidelog.metadata_quorum.controller.controller import Controller
from tidelog.metadata_quorum.controller.decision import entries
from tidelog.metadata_quorum.controller.refusals import ControllerRequest, refuse
from tidelog.metadata_quorum.image.change import MetadataDelta, difference
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.snapshot import decode_snapshot
from tidelog.metadata_quorum.overdue_brokers import OverdueBrokers, Refuses
from tidelog.metadata_quorum.proposals import Proposals
from tidelog.metadata_quorum.publisher import Publisher, encode_with_pauses
from tidelog.metadata_quorum.quorum import Quorum
from tidelog.metadata_quorum.raft.files import QuorumFiles
from tidelog.metadata_quorum.raft.types import NotLeading, OutcomeUnknown, QuorumTiming
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NO_OFFSET, ControllerEpoch, NodeId, Offset
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.api import (
    ClusterBroker,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FeatureLevel,
    QuorumObserver,
    QuorumVoter,
)
from tidelog.proto.calls.controller_api import (
    BrokerHeartbeatRequest,
    FetchMetadataRequest,
    FetchMetadataResponse,
    FetchMetadataSnapshotRequest,
    FetchMetadataSnapshotResponse,
    RegisterBrokerRequest,
)
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tidelog.proto.logs.metadata_codec import decode_batch
from tidelog.proto.logs.metadata_records import BrokerRegistrationChangeRecord, MetadataRecord
from tidelog.proto.logs.record_levels import DIRECTORIES_VOTE
from tidelog.proto.transport.network import Address, CallContext, CallHandler, Network, Service, StreamKind

ENTRIES_UNDER_WAY_MAX: Final = 3_000
"""Uncommitted entries at which changes are refused and fencing waits."""
ENTRIES_RESERVED: Final = 800
"""How many more entries heartbeats and registrations may append; with these the quorum's own limit
(``PROPOSALS_UNDER_WAY_MAX``) is not reached."""
TICK_S_MAX: Final = 1.0
"""Longest sleep of the timer, to limit the effect of clock changes."""

log = logging.getLogger(__name__)

ImageListener = Callable[[MetadataImage, MetadataDelta], None]
LeaderListener = Callable[[NodeId | None, ControllerEpoch], None]
SendingListener = Callable[[], None]


def quorum_timing(config: NodeConfig) -> QuorumTiming:
    """Return the quorum's times, in proportion to ``controller.quorum.election.timeout.ms``."""
    usual = QuorumTiming()
    factor = config.controller_quorum_election_timeout_ms / 1000 / usual.election_min_s
    return dataclasses.replace(
        usual,
        heartbeat_s=usual.heartbeat_s * factor,
        election_min_s=usual.election_min_s * factor,
        election_max_s=usual.election_max_s * factor,
        majority_lost_s=usual.majority_lost_s * factor,
    )


_BOUNDED: Final = (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    CreatePartitionsRequest,
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ElectLeadersRequest,
)
"""Requests that specify their own wait."""


class ControllerNode:
    """One controller of the cluster. Create it on the running event loop.

    ``directory`` holds the metadata log. ``on_fatal`` is called once with the error that must stop the node.
    ``may_join``: see :class:`Quorum`. ``threaded``: whether the Raft engine has its own thread (not in a simulation).
    ``first_records``: see :class:`Controller`. ``refuses`` asks a host whether its port is closed.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        cluster_id: str,
        network: Network,
        files: QuorumFiles,
        directory: Path,
        clock: Clock,
        rng: random.Random,
        on_fatal: Callable[[BaseException], None],
        timing: QuorumTiming | None = None,
        may_join: bool = False,
        threaded: bool = True,
        first_records: Sequence[MetadataRecord] = (),
        refuses: Refuses,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._clock = clock
        self._on_fatal = on_fatal
        self.controller: Final = Controller(
            config,
            cluster_id,
            random.Random(rng.random()),
            self._voters,
            clock.now_ms,
            first_records,
            up_to_date=lambda: self.quorum.up_to_date,
        )
        self.quorum: Final = Quorum(
            cluster_id=cluster_id,
            node_id=config.node_id,
            voters={voter.node_id: Address(voter.host, voter.port) for voter in config.voters},
            directory=directory,
            files=files,
            connect=partial(network.connect, listener=config.controller_listener_names[0]),
            rng=random.Random(rng.random()),
            listener=self,
            on_fatal=self._fail,
            timing=timing or quorum_timing(config),
            may_join=may_join,
            threaded=threaded,
            on_sending=self._tell_sending,
        )
        self._overdue = OverdueBrokers(self.controller.liveness, lambda: self.controller.committed, refuses)
        self.publisher: Final = Publisher(self.quorum, lambda: self.controller.committed)
        self._image_listeners: list[ImageListener] = []
        self._leader_listeners: list[LeaderListener] = []
        self._sending_listeners: list[SendingListener] = []
        self._requests_under_way = 0
        self._proposals = Proposals(self.quorum.propose, self.controller.catch_up, self._proposal_failed)
        self._timer_wake = asyncio.Event()
        self._balance_due_ms = 0
        self._sweep_due_ms = 0
        self._bytes_since_snapshot = 0
        self._snapshot_ms = clock.monotonic_ms()
        self._tasks: set[asyncio.Task[None]] = set()
        self._snapshotting = False
        self._stopped = False
        self._failed = False

    # --- Life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the metadata log and join the quorum. :meth:`service` may be served before. Raises the same errors as
        ``Quorum.start``."""
        await self.quorum.start()
        self._spawn(self._run_timer(), "controller timer")

    async def stop(self) -> None:
        """Stop cleanly."""
        await self._end()
        await self.quorum.stop()

    async def kill(self) -> None:
        """End as if the process were killed: nothing more is written. For tests."""
        await self._end()
        await self.quorum.kill()

    async def _end(self) -> None:
        self._stopped = True
        self._proposals.drop()
        self.publisher.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- For a combined node's broker ---------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The committed image."""
        return self.controller.committed

    @property
    def active(self) -> bool:
        """Whether this is the active controller, as far as it knows."""
        return self.controller.active

    @property
    def bytes_since_snapshot(self) -> int:
        return self._bytes_since_snapshot

    def leader(self) -> tuple[NodeId | None, ControllerEpoch]:
        """Return the known active controller, and the latest epoch."""
        return self.quorum.leader()

    def subscribe(self, listener: ImageListener) -> None:
        """Call ``listener`` with the committed image and what changed, immediately and with each entry, in order."""
        self._image_listeners.append(listener)
        if self.image.offset >= 0:
            listener(self.image, difference(MetadataImage(), self.image))

    def subscribe_leader(self, listener: LeaderListener) -> None:
        """Call ``listener`` with the active controller and its epoch, immediately and with each change."""
        self._leader_listeners.append(listener)
        listener(*self.quorum.leader())

    def subscribe_sending(self, listener: SendingListener) -> None:
        """Call ``listener`` whenever this controller has sent something to others, at least several times a second
        while there is an active one: other messages that are nearly due can go then at little cost."""
        self._sending_listeners.append(listener)

    # --- What the quorum says (QuorumListener) ------------------------------------------------------

    def on_load(self, offset: Offset, epoch: ControllerEpoch, snapshot: bytes) -> None:
        # Without bytes there is no snapshot yet: the log starts here.
        image = decode_snapshot(snapshot) if snapshot else MetadataImage()
        if snapshot and (image.offset, image.epoch) != (offset, epoch):
            raise ValueError(f"expected a snapshot at {offset} of epoch {epoch}, found {image.offset} of {image.epoch}")
        delta = self.controller.load(image.at(offset, epoch))
        self._bytes_since_snapshot = 0
        self._tell(delta)

    def on_commit(self, offset: Offset, epoch: ControllerEpoch, payload: bytes) -> None:
        if payload and epoch == self.controller.epoch and not self._stopped:
            # While this controller leads, every command of its epoch is its own, and they stay in order. One that stops
            # has dropped them, but the quorum still commits.
            records = self._proposals.committed()
        else:
            records = decode_batch(payload) if payload else ()
        delta = self.controller.commit(records, offset, epoch, settled=not self._proposals)
        self._bytes_since_snapshot += len(payload)
        self._tell(delta)
        if self._bytes_since_snapshot >= self._config.metadata_log_max_record_bytes_between_snapshots:
            self._begin_snapshot()

    def on_leading(self, epoch: ControllerEpoch) -> None:
        now_ms = self._clock.monotonic_ms()
        self._proposals.drop()
        self._balance_due_ms = now_ms + self._config.leader_imbalance_check_interval_seconds * 1000
        self._sweep_due_ms = now_ms + self._config.delegation_token_expiry_check_interval_ms
        log.info("node %d is the active controller, epoch %d", self._config.node_id, epoch)
        self._append(self.controller.lead(epoch, now_ms))
        self._timer_wake.set()

    def on_resigned(self, epoch: ControllerEpoch) -> None:
        log.info("node %d is not the active controller any more, epoch %d", self._config.node_id, epoch)
        self.controller.resign()
        self._proposals.drop()

    def on_leader_change(self, leader: NodeId | None, epoch: ControllerEpoch) -> None:
        for listener in self._leader_listeners:
            listener(leader, epoch)

    def _tell_sending(self) -> None:
        for listener in self._sending_listeners:
            listener()

    def _tell(self, delta: MetadataDelta) -> None:
        image = self.controller.committed
        if DIRECTORIES_VOTE.is_open(image.features):
            self.quorum.bind()
        for listener in self._image_listeners:
            listener(image, delta)
        self.publisher.wake()

    # --- Serving ------------------------------------------------------------------------------------

    def service(self) -> Service:
        """Return the service of the controller listener: calls and the Raft stream."""
        calls: dict[type[Any], CallHandler] = dict.fromkeys(self.controller.requests, self.handle)
        calls[FetchMetadataRequest] = self._fetch
        calls[FetchMetadataSnapshotRequest] = self._fetch_snapshot
        calls[DescribeClusterRequest] = self._describe_cluster
        return Service(calls, {StreamKind.RAFT: self.quorum.raft_session})

    async def handle(self, request: ControllerRequest, context: CallContext) -> Any:
        """Decide about a request, and answer once the state it depends on is committed.

        NOT_CONTROLLER: nothing took effect. REQUEST_TIMED_OUT: the outcome is unknown.
        """
        if not self.controller.active or self._stopped:
            return refuse(request, ErrorCode.NOT_CONTROLLER, self._where_to())
        essential = isinstance(request, (BrokerHeartbeatRequest, RegisterBrokerRequest))
        if not essential and (
            self._requests_under_way >= self._config.controller_requests_max
            or len(self._proposals) >= ENTRIES_UNDER_WAY_MAX
        ):
            text = f"expected at most {self._config.controller_requests_max} changes under way, found more: try later"
            return refuse(request, ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
        now_ms = self._clock.monotonic_ms()
        decision = self.controller.decide(request, now_ms)
        appended = list(entries(decision.records))
        if appended and len(self._proposals) + len(appended) > ENTRIES_UNDER_WAY_MAX + ENTRIES_RESERVED:
            return refuse(request, ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many changes are under way: try later")
        self._append_entries(appended)
        self.controller.heard(request, now_ms)
        waiting = self._proposals.last
        offset = self.controller.committed.offset
        if waiting is not None:
            self._requests_under_way += 1
            try:
                async with asyncio.timeout(self._wait_s(request)):
                    offset = await asyncio.shield(waiting)
            except TimeoutError:
                return refuse(request, ErrorCode.REQUEST_TIMED_OUT, "not committed in time: the outcome is unknown")
            except OutcomeUnknown as error:
                return refuse(request, ErrorCode.REQUEST_TIMED_OUT, f"the outcome is unknown: {error}")
            except NotLeading:
                # Of several entries, the first may have been committed.
                code = ErrorCode.NOT_CONTROLLER if len(appended) <= 1 else ErrorCode.REQUEST_TIMED_OUT
                return refuse(request, code, self._where_to())
            finally:
                self._requests_under_way -= 1
        if isinstance(request, BrokerHeartbeatRequest) and self.controller.active:
            self._note_shutdown(request.node_id, offset)
        return decision.response

    def _wait_s(self, request: ControllerRequest) -> float:
        if isinstance(request, _BOUNDED):
            return max(request.timeout_ms, 0) / 1000
        return self._config.request_timeout_ms / 1000

    def _where_to(self) -> str:
        leader, epoch = self.quorum.leader()
        found = "none is known" if leader is None else f"it is node {leader}"
        return f"expected the active controller, found node {self._config.node_id}: {found}, epoch {epoch}"

    def _note_shutdown(self, node_id: NodeId, offset: Offset) -> None:
        found = self.controller.committed.broker(node_id)
        if found is not None and found.in_controlled_shutdown and not found.fenced:
            self.controller.shutdown_committed(node_id, offset)

    async def _fetch(self, request: FetchMetadataRequest, context: CallContext) -> FetchMetadataResponse:
        return await self.publisher.fetch(request)

    async def _fetch_snapshot(
        self, request: FetchMetadataSnapshotRequest, context: CallContext
    ) -> FetchMetadataSnapshotResponse:
        return await self.publisher.fetch_snapshot(request)

    async def _describe_cluster(self, request: DescribeClusterRequest, context: CallContext) -> DescribeClusterResponse:
        """Describe the cluster by this controller's committed image. The offsets of other voters are not known here."""
        image = self.controller.committed
        leader, epoch = self.quorum.leader()
        own = self._config.node_id
        now_ms = self._clock.now_ms()
        return DescribeClusterResponse(
            cluster_id=self._cluster_id,
            controller_id=NO_NODE if leader is None else leader,
            controller_epoch=epoch,
            metadata_offset=image.offset,
            brokers=tuple(
                ClusterBroker(
                    node_id=node_id,
                    broker_epoch=found.broker_epoch,
                    fenced=found.fenced,
                    in_controlled_shutdown=found.in_controlled_shutdown,
                    rack=found.rack,
                    listeners=found.record.listeners,
                    cordoned=image.is_cordoned(node_id),
                )
                for node_id, found in sorted(image.brokers.items())
            ),
            voters=tuple(
                QuorumVoter(voter, self.quorum.commit_offset, now_ms)
                if voter == own
                else QuorumVoter(voter, NO_OFFSET, -1)
                for voter in self._voters()
            ),
            features=tuple(FeatureLevel(name, image.features[name]) for name in sorted(image.features)),
            observers=tuple(self._observers(now_ms)) if self.active else (),
        )

    def _observers(self, now_ms: int) -> Iterator[QuorumObserver]:
        """Yield the brokers without a vote, as far as this active controller has heard from them."""
        monotonic_ms, voters = self._clock.monotonic_ms(), self._voters()
        for found in self.controller.liveness.followers(monotonic_ms):
            if found.node_id not in voters:
                heard_ms, caught_up_ms = found.contact_ms, found.caught_up_ms
                yield QuorumObserver(
                    found.node_id,
                    found.metadata_offset,
                    now_ms - (monotonic_ms - heard_ms),
                    -1 if caught_up_ms is None else now_ms - (monotonic_ms - caught_up_ms),
                )

    def _voters(self) -> list[NodeId]:
        """Return the voters by the metadata log; those of the configuration before there is a quorum."""
        found = self.quorum.voters
        return [voter.node_id for voter in (self._config.voters if found is None else found.voters)]

    # --- Appending ----------------------------------------------------------------------------------

    def _append(self, records: Iterable[MetadataRecord]) -> None:
        """Apply records to the draft and propose them."""
        self._append_entries(list(entries(records)))

    def _append_entries(self, split: Sequence[tuple[MetadataRecord, ...]]) -> None:
        for entry in split:
            self.controller.append(entry)
        self._proposals.put(split, self.controller.epoch)

    def _proposal_failed(self, error: BaseException, epoch: ControllerEpoch) -> None:
        if not self._stopped and self.controller.active and self.controller.epoch == epoch:
            # The draft has records that the log will not get, and later proposals depend on them.
            self._fail(error)

    # --- Time ---------------------------------------------------------------------------------------

    async def _run_timer(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            due_ms = self._next_due_ms(now_ms)
            wait_s = min(max(due_ms - now_ms, 1) / 1000, TICK_S_MAX)
            self._timer_wake.clear()
            if self.controller.active:
                await asyncio.sleep(wait_s)
            else:
                try:
                    async with asyncio.timeout(TICK_S_MAX):
                        await self._timer_wake.wait()
                except TimeoutError:
                    pass
            await self._on_time(int(now_ms + wait_s * 1000))

    def _next_due_ms(self, now_ms: int) -> int:
        expiry = self.controller.liveness.next_expiry_ms() if self.controller.active else None
        overdue = self._overdue.next_ms(now_ms) if self.controller.active else None
        # A broker that is unfenced while the timer sleeps cannot expire before a whole session has passed.
        session_ms = self._config.broker_session_timeout_ms
        if expiry is None or overdue is None:
            return now_ms + session_ms
        return min(expiry, overdue, now_ms + session_ms)

    async def _on_time(self, planned_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if self.controller.active:
            late_ms = now_ms - planned_ms
            if late_ms >= self._config.broker_heartbeat_interval_ms:
                log.warning("the event loop of controller %d stood still for %d ms", self._config.node_id, late_ms)
                self.controller.liveness.forgive(late_ms, now_ms)
            if self._config.auto_leader_rebalance_enable and now_ms >= self._balance_due_ms:
                self._balance_due_ms = now_ms + self._config.leader_imbalance_check_interval_seconds * 1000
                self._append(self.controller.balance())
            self._fence_silent(now_ms)
            if overdue := self._overdue.to_ask(now_ms):
                self._spawn(self._ask_hosts(overdue, now_ms), "hosts of overdue brokers")
            if now_ms >= self._sweep_due_ms and len(self._proposals) < ENTRIES_UNDER_WAY_MAX:
                self._sweep_due_ms = now_ms + self._config.delegation_token_expiry_check_interval_ms
                self._append(self.controller.sweep_tokens())
            await asyncio.sleep(0)  # brokers of many partitions take long; others must be heard
            if self.controller.active and len(self._proposals) < ENTRIES_UNDER_WAY_MAX:
                self._append(self.controller.recover(now_ms))
        interval_ms = self._config.metadata_log_max_snapshot_interval_ms
        if interval_ms and self._bytes_since_snapshot and now_ms - self._snapshot_ms >= interval_ms:
            self._begin_snapshot()

    async def _ask_hosts(self, overdue: Mapping[NodeId, int], now_ms: int) -> None:
        if await self._overdue.ask(overdue, now_ms) and self.controller.active:
            self._fence_silent(self._clock.monotonic_ms())

    def _fence_silent(self, now_ms: int) -> None:
        if len(self._proposals) >= ENTRIES_UNDER_WAY_MAX:
            return
        records = self.controller.fence_silent(now_ms)
        if records:
            fenced = [record.node_id for record in records if isinstance(record, BrokerRegistrationChangeRecord)]
            for node_id in fenced:
                log.warning("fencing broker %d: %d partitions change", node_id, len(records) - len(fenced))
            self._append(records)

    # --- Snapshots ----------------------------------------------------------------------------------

    def _begin_snapshot(self) -> None:
        if self._snapshotting or self._stopped:
            return
        self._snapshotting = True
        self._bytes_since_snapshot = 0
        self._snapshot_ms = self._clock.monotonic_ms()
        self._spawn(self._snapshot(self.controller.committed), "metadata snapshot")

    async def _snapshot(self, image: MetadataImage) -> None:
        try:
            data = await encode_with_pauses(image)
            self.quorum.compact(image.offset, image.epoch, data)
            log.info("metadata snapshot at offset %d: %d bytes", image.offset, len(data))
        finally:
            self._snapshotting = False

    # --- Tasks --------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{name} {self._config.node_id}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed and not self._stopped:
            self._failed = True
            self._on_fatal(error)
