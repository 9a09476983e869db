"""The follower's side: one stream to each broker that leads partitions replicated here.

One task per source broker sends a fetch, processes the answer, and sends the next. A fetch names only partitions whose
position changed (see :mod:`tidelog.replication.serving.session` for the stream's rules), so idle partitions cost
nothing. While a fetch waits at the leader, a second one may overtake it to name partitions with changes (added, pause
over, flush done): the leader then ends the first one's wait.

States of a partition here: *due* (to be named), *named* (the leader knows its position), *paused* (after a refusal;
doubling up to ``replica.fetch.backoff.ms``; or held back by the throttle), *flushing* (records must be flushed before
the next position may acknowledge them).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Callable
from typing import Final, Protocol, assert_never

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, NodeId, TopicId, TopicIdPartition
from tidelog.proto.transport.frames import (
    FORGOTTEN_MAX,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    correlation_of,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.proto.transport.network import BadFrame, CallTimeout, Connection, ConnectionLost, FrameStream, StreamKind
from tidelog.replication.following.throttle import Throttle
from tidelog.replication.partition.due_timer import DueTimer
from tidelog.replication.partition.partition import Fetched
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.settings import ReplicationSettings
from tidelog.storage.disk.log_errors import LogDirFailed

log = logging.getLogger(__name__)

OUTSTANDING_MAX: Final = 2
"""Most unanswered fetches: the waiting one and the one that overtakes it."""
NOT_NAMED: Final = 1 << 40


class FetcherOwner(Protocol):
    """The methods that a fetcher needs of its node."""

    @property
    def node_id(self) -> NodeId: ...
    @property
    def settings(self) -> ReplicationSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def rng(self) -> random.Random: ...
    @property
    def follower_throttle(self) -> Throttle: ...

    def own_broker_epoch(self) -> BrokerEpoch: ...
    def connect(self, node: NodeId) -> Connection | None: ...
    def follower_flush(self, replica: Replica, done: Callable[[], None]) -> None: ...
    def disk_failed(self, replica: Replica, failure: LogDirFailed) -> None: ...


class FollowedPartition:
    """One partition that is fetched from a source."""

    __slots__ = ("flushing", "named_at", "pause_ms", "paused", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.named_at = NOT_NAMED
        """Correlation id of the last fetch that named it: earlier answers refer to an older position."""
        self.pause_ms = 0
        self.paused = False
        self.flushing = False


class BrokerFetcher:
    """Fetches everything that this node replicates from one broker."""

    def __init__(self, source: NodeId, owner: FetcherOwner) -> None:
        self.source = source
        self._owner = owner
        self._partitions: dict[TopicIdPartition, FollowedPartition] = {}
        self._due: dict[FollowedPartition, None] = {}
        self._forgotten: list[tuple[TopicId, int]] = []
        self._paused: list[tuple[float, int, FollowedPartition]] = []
        self._pauses = 0
        self._pause_timer = DueTimer(self._end_pauses)
        self._stream: FrameStream | None = None
        self._outstanding: set[int] = set()
        self._broker_epoch = BrokerEpoch(-1)
        self._correlation = 0
        self._sending = False
        self._kicked = asyncio.Event()
        self._retry = asyncio.Event()
        self._failures = 0
        self._fruitless = 0
        self.bytes_received = 0
        self.failed_partitions = 0
        self.damaged_answers = 0
        """Number of rejected partition answers that were not whole batches."""

    def __len__(self) -> int:
        return len(self._partitions)

    # --- which partitions ---------------------------------------------------------------------------

    def add(self, replica: Replica) -> None:
        """Fetch this partition from now on; if it is already fetched, from its current position."""
        known = self._partitions.get(replica.key)
        if known is not None:
            self._due.pop(known, None)
        entry = self._partitions[replica.key] = FollowedPartition(replica)
        self._make_due(entry)
        self._retry.set()

    def remove(self, key: TopicIdPartition) -> None:
        entry = self._partitions.pop(key, None)
        if entry is not None:
            self._due.pop(entry, None)
            self._let_go(entry)

    def _let_go(self, entry: FollowedPartition) -> None:
        """Tell the source with the next fetch that this node no longer fetches this partition."""
        if entry.named_at != NOT_NAMED and self._stream is not None:
            self._forgotten.append((entry.replica.key.topic_id, entry.replica.key.partition))
            entry.named_at = NOT_NAMED

    def retry_now(self) -> None:
        """End a pause between two connections, because the source is probably reachable."""
        self._retry.set()

    def _make_due(self, entry: FollowedPartition) -> None:
        if self._partitions.get(entry.replica.key) is entry:
            self._due[entry] = None
            self._kicked.set()

    # --- the stream ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch until cancelled; reconnect with growing pauses."""
        settings = self._owner.settings
        while True:
            while not self._partitions:
                self._kicked.clear()
                await self._kicked.wait()
            try:
                await self._connected()
            except (ConnectionLost, CallTimeout, TimeoutError, BadFrame) as error:
                self._failures += 1
                log.info("replication from node %d: %s", self.source, error)
            self._retry.clear()
            pause_ms = min(settings.retry_first_ms << min(self._failures, 16), settings.replica_fetch_backoff_ms)
            try:
                async with asyncio.timeout(pause_ms * self._owner.rng.uniform(0.5, 1.0) / 1000):
                    await self._retry.wait()
            except TimeoutError:
                pass

    async def _connected(self) -> None:
        """Run one stream from its opening to its loss."""
        connection = self._owner.connect(self.source)
        if connection is None:
            raise ConnectionLost(f"no address of node {self.source} is known yet")
        settings = self._owner.settings
        stream = await connection.open(StreamKind.REPLICA_FETCH, timeout_s=settings.replica_connect_timeout_ms / 1000)
        kicks = asyncio.create_task(self._send_when_kicked(stream), name=f"fetch kicks to node {self.source}")
        kicks.add_done_callback(lambda _: stream.close())
        try:
            self._stream = stream
            self._begin()
            await self._send(stream)
            while self._partitions:
                wait_ms = settings.fetch_wait_ms(self._fruitless)
                async with asyncio.timeout((wait_ms + settings.replica_socket_timeout_ms) / 1000):
                    frame = await stream.receive()
                self._take(frame)
                del frame
                await self._send(stream)
        finally:
            self._stream = None
            kicks.cancel()
            stream.close()
            await asyncio.wait({kicks})
            if not kicks.cancelled() and (bug := kicks.exception()) is not None and not isinstance(bug, ConnectionLost):
                raise bug

    def _begin(self) -> None:
        """Reset all state: the peer of a new stream remembers nothing."""
        self._outstanding.clear()
        self._forgotten.clear()
        self._name_all()

    def _name_all(self) -> None:
        for entry in self._partitions.values():
            entry.named_at = NOT_NAMED
            entry.replica.partition.forget_refusal()
            if not entry.flushing and not entry.paused:
                self._due[entry] = None

    async def _send_when_kicked(self, stream: FrameStream) -> None:
        while True:
            await self._kicked.wait()
            self._kicked.clear()
            await self._send(stream)

    async def _send(self, stream: FrameStream) -> None:
        """Send due fetches: one always waits at the leader, another goes out to name changes."""
        if self._sending:
            return
        self._sending = True
        try:
            while not self._outstanding or (
                len(self._outstanding) < OUTSTANDING_MAX and (self._due or self._forgotten)
            ):
                correlation = self._correlation = self._correlation + 1
                request = self._next_request(correlation)
                self._outstanding.add(correlation)
                await stream.send(encode_fetch_request(correlation & 0xFFFF_FFFF, request))
        finally:
            self._sending = False

    def _next_request(self, correlation: int) -> FetchRequest:
        settings = self._owner.settings
        epoch = self._owner.own_broker_epoch()
        if epoch != self._broker_epoch:
            # The leader accepts a position, and admits to an ISR, under the fetch's epoch.
            self._broker_epoch = epoch
            self._name_all()
        items: list[FetchPartition] = []
        for entry in tuple(self._due):
            if len(items) >= settings.fetch_partitions_max:
                break
            del self._due[entry]
            partition = entry.replica.partition
            following = partition.following
            if following is None or following.leader != self.source:
                continue
            if partition.needs_flush:
                self._flush(entry)
                continue
            bytes_max = settings.replica_fetch_max_bytes
            if self._throttled(entry):
                room = self._owner.follower_throttle.room(self._owner.clock.monotonic_ms())
                if not room:
                    # Meanwhile the leader must not wait for it to join the ISR.
                    self._let_go(entry)
                    self._wait(entry, self._owner.follower_throttle.wait_ms())
                    continue
                bytes_max = min(bytes_max, room)
            replica_log = partition.log
            entry.named_at = correlation
            items.append(
                FetchPartition(
                    entry.replica.key.topic_id,
                    entry.replica.key.partition,
                    following.epoch,
                    replica_log.log_end_offset,
                    replica_log.latest_epoch,
                    replica_log.log_start_offset,
                    bytes_max,
                )
            )
        most = FORGOTTEN_MAX
        forgotten, self._forgotten = self._forgotten[:most], self._forgotten[most:]
        if items:
            self._fruitless = 0
        return FetchRequest(
            self._owner.node_id,
            epoch,
            settings.fetch_wait_ms(self._fruitless),
            settings.replica_fetch_min_bytes,
            settings.replica_fetch_response_max_bytes,
            False,
            items,
            forgotten,
        )

    def _throttled(self, entry: FollowedPartition) -> bool:
        """Return whether the follower's throttle applies to this partition now: not while it is in sync."""
        return entry.replica.follower_throttled and self._owner.node_id not in entry.replica.partition.state.isr

    def _flush(self, entry: FollowedPartition) -> None:
        """Flush the partition's records first, because its next position acknowledges them (``flush.messages``)."""
        if entry.flushing:
            return
        entry.flushing = True

        def flushed() -> None:
            entry.flushing = False
            self._make_due(entry)

        self._owner.follower_flush(entry.replica, flushed)

    # --- answers ------------------------------------------------------------------------------------

    def _take(self, frame: memoryview) -> None:
        correlation = self._answered(correlation_of(frame))
        _, response = decode_fetch_response(frame)
        if response.error is not ErrorCode.NONE:
            raise ConnectionLost(f"the fetch was refused as a whole: {response.error.name}")
        self._failures = 0
        self.bytes_received += len(frame)
        self._fruitless = 0 if response.partitions else self._fruitless + 1
        wall_ms = self._owner.clock.now_ms()
        for item in response.partitions:
            entry = self._partitions.get(TopicIdPartition(item.topic_id, item.partition))
            if entry is not None and correlation >= entry.named_at:
                self._take_partition(entry, item, wall_ms)

    def _answered(self, low_bits: int) -> int:
        for correlation in self._outstanding:
            if correlation & 0xFFFF_FFFF == low_bits:
                self._outstanding.discard(correlation)
                return correlation
        raise BadFrame(f"expected the answer to one of {sorted(self._outstanding)}, found {low_bits}")

    def _take_partition(self, entry: FollowedPartition, item: FetchedPartition, wall_ms: int) -> None:
        replica = entry.replica
        if item.records and self._throttled(entry):
            self._owner.follower_throttle.moved(sum(map(len, item.records)))
        try:
            outcome = replica.partition.take(item, wall_ms)
        except LogDirFailed as failure:
            self._owner.disk_failed(replica, failure)
            return
        replica.settle()
        match outcome:
            case Fetched.MOVED:
                entry.pause_ms = 0
                self._due[entry] = None
            case Fetched.NOTHING_NEW:
                entry.pause_ms = 0
            case Fetched.DAMAGED:
                self.damaged_answers += 1
                self._pause(entry, item)
            case Fetched.STALE | Fetched.RETRY:
                self.failed_partitions += 1
                self._pause(entry, item)
            case _:
                assert_never(outcome)

    # --- pauses -------------------------------------------------------------------------------------

    def _pause(self, entry: FollowedPartition, item: FetchedPartition) -> None:
        """Name it again later; the leader may not know yet that it leads, or may have problems."""
        settings = self._owner.settings
        entry.pause_ms = min(max(entry.pause_ms * 2, settings.retry_first_ms), settings.replica_fetch_backoff_ms)
        entry.named_at = NOT_NAMED
        log.debug("%s from node %d: %s; again in %d ms", entry.replica.key, self.source, item.error, entry.pause_ms)
        self._wait(entry, entry.pause_ms)

    def _wait(self, entry: FollowedPartition, wait_ms: int) -> None:
        """Name it again after this time."""
        entry.paused = True
        loop = asyncio.get_running_loop()
        self._pauses += 1
        heapq.heappush(self._paused, (loop.time() + wait_ms / 1000, self._pauses, entry))
        self._pause_timer.set(self._paused[0][0])

    def _end_pauses(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._paused and self._paused[0][0] <= now:
            entry = heapq.heappop(self._paused)[2]
            entry.paused = False
            self._make_due(entry)
        if self._paused:
            self._pause_timer.set(self._paused[0][0])

    def close(self) -> None:
        """Stop the timer; the task's owner ends the task."""
        self._pause_timer.cancel()
