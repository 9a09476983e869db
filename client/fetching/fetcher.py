"""The consumer's IO: keeps fetches in flight to every leader, looks up and validates positions.

Partitions of one leader share a frame. A partition has at most one fetch in flight. Its data is buffered, up to
``max_partition_fetch_bytes`` per partition and ``fetch_max_bytes`` in all, so the next data is on its way while the
user processes the last. :mod:`tidelog.client.fetching.positions` decides.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.cluster.metadata import PartitionView, TopicView
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import (
    TidelogError,
    UnknownTopicOrPartitionError,
    WrongAddressError,
    exception_for,
)
from tidelog.client.fetching.offset_lookup import look_up
from tidelog.client.fetching.positions import UNKNOWN, Assignment, PartitionState
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.record import corrupt
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicPartition
from tidelog.proto.calls.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, EpochEndPartition, OffsetForLeaderEpochRequest
from tidelog.proto.records.batches import Batch, CorruptBatch, split_batches
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.proto.transport.network import BadFrame, Connection, ConnectionLost, Frame, StreamKind

FRAMES_PER_NODE_MAX: Final = 8
"""Maximum fetches in flight per node. Several, so that a partition with room need not wait for a long poll."""
LEADER_ONLY_MS: Final = 10_000
"""How long records come from the leader after a nearby replica failed to serve them."""
UNKNOWN_TOPIC_GRACE_MS: Final = 5_000
"""How long an assigned topic may be unknown (it may be being created) before poll raises."""
NEVER_MS: Final = 1 << 62

CommittedLookup = Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, OffsetAndMetadata | None]]]
"""Requests committed offsets from a group's coordinator; ``None`` for partitions without one."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Asked:
    """One fetch in flight: its partitions, each with its generation at that time and its leader's epoch."""

    sent_ms: int
    states: dict[tuple[bytes, int], tuple[PartitionState, int, int]]


@dataclass(slots=True, eq=False)
class _Link:
    connection: Connection
    caller: FrameCaller
    asked: dict[_Asked, None] = field(default_factory=dict)


class Fetcher:
    """``on_data`` is called (without the lock) when a poll may find something new: records or an error."""

    def __init__(
        self,
        config: ConsumerConfig,
        assignment: Assignment,
        lock: threading.Lock,
        cluster: Cluster,
        on_data: Callable[[], None],
        committed: CommittedLookup | None = None,
    ) -> None:
        self._committed_lookup = committed
        self._config = config
        self._assignment = assignment
        self._lock = lock
        self._cluster = cluster
        self._clock = cluster.clock
        self._metrics = cluster.metrics
        self._on_data = on_data
        self._links: dict[int, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Future[None]] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._topics: set[str] = set()
        self._unknown_since: dict[TopicPartition, int] = {}
        cluster.on_change(lambda _: self._wake.set())

    # --- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="fetcher")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end of the fetcher, which is a bug; the next poll raises it."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.critical("the consumer's fetcher failed", exc_info=error)
            with self._lock:
                for state in self._assignment.partitions.values():
                    state.error = error
            self._on_data()

    def wake(self) -> None:
        """Look again for something to fetch. Runs on the loop's thread."""
        self._wake.set()

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for link in list(self._links.values()):
            await link.caller.close()
        self._links.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    # --- the loop -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now = self._clock.monotonic_ms()
            look_again = min(self._step(now), self._time_out_requests(now))
            if self._wake.is_set():
                await asyncio.sleep(0)
                continue
            if look_again >= NEVER_MS:
                await self._wake.wait()
                continue
            timer = loop.call_later(max(0, look_again - now) / 1_000, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    def _step(self, now: int) -> int:
        """Send every request that can be sent. Returns when to look again."""
        look_again = NEVER_MS
        fetches: dict[tuple[int, str], list[tuple[PartitionState, TopicView, PartitionView]]] = {}
        """By node and the rack to send to it."""
        resets: list[PartitionState] = []
        starts: list[PartitionState] = []
        with self._lock:
            topics = {at.topic for at in self._assignment.partitions}
            for gone in self._topics - topics:
                self._cluster.unwant(gone)
            if topics != self._topics:
                self._unknown_since = {at: since for at, since in self._unknown_since.items() if at.topic in topics}
            self._topics = topics
            room = self._config.fetch_max_bytes - self._assignment.buffered_bytes
            ahead = max(1, self._config.max_partition_fetch_bytes)
            for state in self._assignment.partitions.values():
                if state.asking or state.error is not None:
                    continue
                if now < state.retry_at_ms:
                    look_again = min(look_again, state.retry_at_ms)
                    continue
                if state.wants_committed:
                    state.asking = True
                    starts.append(state)
                    continue
                topic = self._cluster.cache.topics.get(state.at.topic)
                node = self._cluster.cache.leader_of(*state.at)
                if topic is None or node == NO_NODE:
                    look_again = min(look_again, self._without_leader(state, topic, now))
                    continue
                if self._unknown_since:
                    self._unknown_since.pop(state.at, None)
                view = topic.partitions[state.at.partition]
                if state.reset is not None:
                    state.asking = True
                    resets.append(state)
                elif max(state.fetch_epoch, state.leader_epoch_min) > view.leader_epoch:
                    look_again = min(look_again, self._behind(state, topic, view, now))
                elif state.needs_validation(view.leader_epoch):
                    state.asking = True
                    self._spawn(self._validate(state, state.generation, topic, view))
                elif state.may_fetch(now, ahead) and (room > 0 or not state.has_data):
                    fetches.setdefault(self._source(state, node, now), []).append((state, topic, view))
        if resets:
            self._spawn(self._reset(resets, {state.at: state.generation for state in resets}))
        if starts:
            self._spawn(self._start_at_committed(starts, {state.at: state.generation for state in starts}))
        for (node, rack), items in fetches.items():
            look_again = min(look_again, self._fetch(node, rack, items, now, max(1, room)))
        return look_again

    def _source(self, state: PartitionState, leader: int, now: int) -> tuple[int, str]:
        """Return the node to fetch from, and the rack to send to it. The lock is held."""
        rack = self._config.client_rack
        if not rack or now < state.leader_only_until_ms:
            return leader, ""
        if state.nearest in (NO_NODE, leader) or now >= state.nearest_until_ms:
            state.nearest = NO_NODE
            return leader, rack
        if self._cluster.connection(state.nearest) is None:
            state.read_from_leader(now + LEADER_ONLY_MS)
            return leader, ""
        return state.nearest, rack

    def _without_leader(self, state: PartitionState, topic: TopicView | None, now: int) -> int:
        """Request metadata, and give up on partitions that the cluster still does not know. The lock is held."""
        at = state.at
        self._cluster.want(at.topic)
        self._cluster.request_refresh()
        if isinstance(self._cluster.failure, WrongAddressError):
            state.error = self._cluster.failure
            self._on_data()
        unknown = at.topic in self._cluster.cache.errors or (
            topic is not None and at.partition >= len(topic.partitions)
        )
        if not unknown:
            self._unknown_since.pop(at, None)
        elif now - self._unknown_since.setdefault(at, now) > UNKNOWN_TOPIC_GRACE_MS:
            code, message = self._cluster.cache.errors.get(at.topic, (ErrorCode.NONE, ""))
            if code is not ErrorCode.NONE:
                state.error = exception_for(code, f"{at}: {message or 'the cluster does not know the topic'}")
            else:
                count = 0 if topic is None else len(topic.partitions)
                state.error = UnknownTopicOrPartitionError(f"{at}: expected a partition from 0 to {count - 1}")
            self._on_data()
        return now + self._config.retry_backoff_ms + 1

    def _behind(self, state: PartitionState, topic: TopicView, view: PartitionView, now: int) -> int:
        """Handle a known leader with an older epoch than a record read or committed before. The broker that named it
        does not know the newer leader yet, and its log may contain less. Source:
        ``Metadata.updateLastSeenEpochIfNewer``.

        Or it leads a later topic with that name. If we cannot tell, because the epoch came with a seek and not from
        this topic, we wait as long as for an answer; Kafka's consumer waits forever. So do we if the caller knows that
        there is such a leader (``leader_epoch_min``)."""
        if state.topic_id is not None and state.topic_id != topic.topic_id:
            state.made_anew(self._assignment.policy)
            self._metrics.offset_resets += state.reset is not None
            self._on_data()
            return now
        self._cluster.want(state.at.topic)
        self._cluster.request_refresh()
        if state.topic_id is None and state.fetch_epoch > view.leader_epoch:
            if state.behind_since_ms == UNKNOWN:
                state.behind_since_ms = now
            elif now - state.behind_since_ms > self._config.request_timeout_ms:
                state.without_such_an_epoch()
                self._on_data()
        return now + self._config.retry_backoff_ms + 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("looking up positions failed", exc_info=task.exception())

    # --- fetching -----------------------------------------------------------------------------------

    def _fetch(
        self, node: int, rack: str, items: list[tuple[PartitionState, TopicView, PartitionView]], now: int, room: int
    ) -> int:
        config = self._config
        connection = self._cluster.connection(node)
        link = self._links.get(node)
        if connection is None:
            return max(now + 1, self._cluster.usable_at_ms(node))
        if link is None or link.connection is not connection:
            if link is not None:
                task = asyncio.ensure_future(link.caller.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            link = self._links[node] = _Link(connection, FrameCaller(connection, StreamKind.FETCH))
        if len(link.asked) >= FRAMES_PER_NODE_MAX:
            return NEVER_MS
        asked = _Asked(now, {})
        partitions = []
        with self._lock:
            for state, topic, view in items:
                if state.asking or state.position == UNKNOWN:
                    continue
                state.asking = True
                if state.validated_epoch == UNKNOWN:
                    state.validated_epoch = view.leader_epoch
                if state.topic_id is None:
                    state.topic_id = topic.topic_id
                asked.states[topic.topic_id, view.partition] = (state, state.generation, view.leader_epoch)
                partitions.append(
                    FetchPartition(
                        topic.topic_id,
                        view.partition,
                        view.leader_epoch,
                        Offset(state.fetch_offset),
                        LeaderEpoch(state.fetch_epoch),
                        Offset(UNKNOWN),
                        config.max_partition_fetch_bytes,
                    )
                )
        if not partitions:
            return NEVER_MS
        request = FetchRequest(
            replica_id=NO_NODE,
            replica_epoch=BrokerEpoch(UNKNOWN),
            wait_ms_max=config.fetch_max_wait_ms,
            bytes_min=config.fetch_min_bytes,
            bytes_max=min(room, config.fetch_max_bytes),
            read_committed=config.read_committed,
            partitions=partitions,
            rack=rack,
            wanted=None if config.header_filter is None else config.header_filter.mask,
        )
        self._metrics.fetches += 1
        link.asked[asked] = None
        future = link.caller.submit(partial(_encode, request))
        future.add_done_callback(partial(self._on_answer, link, asked))
        return NEVER_MS

    def _on_answer(self, link: _Link, asked: _Asked, future: asyncio.Future[memoryview]) -> None:
        link.asked.pop(asked, None)
        if future.cancelled():
            return
        error = future.exception()
        results: dict[tuple[bytes, int], FetchedPartition] = {}
        code = ErrorCode.NETWORK_EXCEPTION
        if error is None:
            try:
                response = decode_fetch_response(future.result())[1]
                code = response.error if response.error is not ErrorCode.NONE else code
                results = {(r.topic_id, r.partition): r for r in response.partitions}
                self._cluster.succeeded(link.connection)
            except BadFrame as bad:
                error = ConnectionLost(str(bad))
                link.caller.reset(str(bad))
        if isinstance(error, ConnectionLost):
            self._cluster.failed(link.connection)
        elif error is not None:
            raise error
        now = self._clock.monotonic_ms()
        news = False
        with self._lock:
            for key, (state, generation, epoch) in asked.states.items():
                if state.generation != generation:
                    continue
                state.asking = False
                result = results.get(key)
                if state.nearest != NO_NODE and (result is None or result.error is not ErrorCode.NONE):
                    state.read_from_leader(now + LEADER_ONLY_MS)
                elif result is None:
                    self._retry(state, code, now)
                else:
                    news = self._take(state, result, epoch, now, alone=len(asked.states) == 1) or news
        if news:
            self._on_data()
        self._wake.set()

    def _take(
        self, state: PartitionState, result: FetchedPartition, leader_epoch: int, now: int, *, alone: bool
    ) -> bool:
        """Take one partition's answer. The lock is held. Returns whether a poll has something new. ``leader_epoch``: of
        the leader that was asked. ``alone``: the fetch contained no other partition whose data could have used up its
        bytes."""
        code = result.error
        if code is ErrorCode.NONE:
            state.failures = 0
            if result.preferred_read_replica != NO_NODE:
                state.read_nearby(result.preferred_read_replica, now + self._config.metadata_max_age_ms)
                return False
            state.high_watermark = result.high_watermark
            state.last_stable_offset = result.last_stable_offset
            state.read_committed = self._config.read_committed
            state.log_start_offset = result.log_start_offset
            if result.diverging_epoch != UNKNOWN:
                self._diverged(state, result.diverging_epoch, result.diverging_end_offset)
                return state.error is not None
            filtered_until = UNKNOWN if self._config.header_filter is None else result.diverging_end_offset
            if not result.records:
                return state.pass_until(filtered_until) or (alone and state.found_nothing())
            data = result.records[0] if len(result.records) == 1 else b"".join(result.records)
            batches = self._checked(state, data, leader_epoch)
            aborted = result.aborted if self._config.read_committed else ()
            self._metrics.bytes_consumed += state.take_fetched(batches, aborted)
            if state.error is None:
                state.pass_until(filtered_until)
            return state.has_data or state.error is not None
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            state.out_of_range(self._assignment.policy)
            self._metrics.offset_resets += state.reset is not None
            return state.error is not None
        if code is ErrorCode.CORRUPT_MESSAGE:
            found = CorruptBatch("expected intact records, found them damaged on every reachable replica")
            state.error = corrupt(state.at.topic, state.at.partition, state.fetch_offset, found)
            return True
        if result.current_leader >= 0 and self._cluster.cache.update_leader(
            *state.at, result.current_leader, result.current_leader_epoch
        ):
            return False
        self._retry(state, code, now)
        return state.error is not None

    def _checked(self, state: PartitionState, data: bytes | bytearray | memoryview, leader_epoch: int) -> list[Batch]:
        """Cut the fetched bytes into batches, up to the first corrupt one, which is the next poll's error.

        No CRC covers a batch's offset and leader epoch. So the offset is checked against the previous batch and the
        high watermark, and the epoch against that of the leader, because a later one would be waited for indefinitely.
        """
        good: list[Batch] = []
        at, due = state.fetch_offset, 0
        try:
            for batch in split_batches(data, allow_partial_tail=True):
                if batch.base_offset < due or batch.last_offset >= state.high_watermark:
                    raise CorruptBatch(
                        f"expected offsets from {due} to {state.high_watermark - 1}, found {batch.base_offset} to "
                        f"{batch.last_offset}"
                    )
                if batch.leader_epoch > leader_epoch != UNKNOWN:
                    raise CorruptBatch(
                        f"expected leader epoch {leader_epoch} at most, found {batch.leader_epoch} at offset "
                        f"{batch.base_offset}"
                    )
                at, due = batch.base_offset, batch.next_offset
                if self._config.check_crcs and not batch.crc_ok():
                    raise CorruptBatch(f"expected checksum {batch.crc:#010x} to be that of its {batch.size} bytes")
                good.append(batch)
        except CorruptBatch as error:
            state.error = corrupt(state.at.topic, state.at.partition, at, error)
        return good

    def _retry(self, state: PartitionState, code: ErrorCode, now: int) -> None:
        """Retry later, or give the error to the next poll."""
        if not code.retriable:
            state.error = exception_for(code, f"{state.at}: {code.name}")
            return
        if code.refreshes_metadata or code is ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._cluster.request_refresh()
        state.failures += 1
        state.retry_at_ms = now + self._cluster.retry_backoff.after(state.failures, self._cluster.rng)

    def _diverged(self, state: PartitionState, end_epoch: int, end_offset: int) -> None:
        position = state.position
        if state.diverged(end_epoch, end_offset, self._assignment.policy):
            self._metrics.truncations += 1
            log.warning("%s: the log was truncated at %d, below the position %d", state.at, end_offset, position)

    def _time_out_requests(self, now: int) -> int:
        limit = self._config.request_timeout_ms + self._config.fetch_max_wait_ms
        look_again = NEVER_MS
        for link in self._links.values():
            if link.asked:
                since = next(iter(link.asked)).sent_ms
                if since + limit <= now:
                    link.caller.reset(f"no answer to a fetch within {limit} ms")
                else:
                    waited = self._cluster.waited(link.connection, since + self._config.fetch_max_wait_ms)
                    look_again = min(look_again, since + limit, waited)
        return look_again

    # --- positions ----------------------------------------------------------------------------------

    async def _reset(self, states: list[PartitionState], generations: dict[TopicPartition, int]) -> None:
        """Look up the offsets that the partitions' reset policies require."""
        wanted = {}
        with self._lock:
            for state in states:
                reset = state.reset
                if reset is None or state.generation != generations[state.at]:
                    continue  # another thread has set a position meanwhile
                if reset.kind == "by_duration":
                    wanted[state.at] = self._clock.now_ms() - reset.duration_ms
                else:
                    wanted[state.at] = EARLIEST_TIMESTAMP if reset.kind == "earliest" else LATEST_TIMESTAMP
        try:
            found = await self._offsets(wanted)
        except TidelogError as error:
            now = self._clock.monotonic_ms()
            with self._lock:
                for state in states:
                    if state.generation == generations[state.at]:
                        state.asking = False
                        if error.retriable:
                            self._retry(state, ErrorCode.NETWORK_EXCEPTION, now)
                        else:
                            state.error = error
            self._on_data()
            return
        with self._lock:
            for state in states:
                if state.generation == generations[state.at]:
                    offset, epoch = found[state.at]
                    state.seek(offset, epoch)
        self._on_data()

    async def _start_at_committed(self, states: list[PartitionState], generations: dict[TopicPartition, int]) -> None:
        """Use the group's committed offsets as positions; without one, the reset policy decides."""
        assert self._committed_lookup is not None
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        failure: TidelogError | None = None
        try:
            found = await self._committed_lookup([state.at for state in states])
        except TidelogError as error:
            failure = error
        now = self._clock.monotonic_ms()
        with self._lock:
            for state in states:
                if state.generation != generations[state.at]:
                    continue
                state.asking = False
                if failure is not None and failure.retriable:
                    self._retry(state, ErrorCode.NETWORK_EXCEPTION, now)
                elif failure is not None:
                    state.error = failure
                elif (committed := found.get(state.at)) is not None:
                    state.seek(committed.offset, committed.leader_epoch)
                else:
                    state.wants_committed = False
                    state.without_position(self._assignment.policy)
        self._on_data()

    async def _offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        committed = self._config.read_committed
        timeout_ms = self._config.request_timeout_ms
        found = await look_up(self._cluster, wanted, read_committed=committed, timeout_ms=timeout_ms)
        late = {at: LATEST_TIMESTAMP for at, result in found.items() if result.offset == UNKNOWN}
        if late:  # no record is that recent: take the end
            found |= await look_up(self._cluster, late, read_committed=committed, timeout_ms=timeout_ms)
        return {at: (result.offset, result.leader_epoch) for at, result in found.items()}

    async def _validate(self, state: PartitionState, generation: int, topic: TopicView, view: PartitionView) -> None:
        """Ask a new leader where the epoch of the read records ends in its log (KIP-320)."""
        request = OffsetForLeaderEpochRequest(
            (EpochEndPartition(topic.topic_id, view.partition, LeaderEpoch(state.fetch_epoch), view.leader_epoch),)
        )
        code = ErrorCode.NETWORK_EXCEPTION
        answer = None
        failure: TidelogError | None = None
        leader: NodeId = view.leader
        epoch = view.leader_epoch
        try:
            response = await self._cluster.call(request, timeout_ms=self._config.request_timeout_ms, node=leader)
            answer = response.results[0] if response.results else None
            code = answer.error if answer is not None else code
        except TidelogError as error:
            log.debug("%s: position not validated yet: %s", state.at, error)
            failure = None if error.retriable else error
        with self._lock:
            if state.generation != generation:
                return
            state.asking = False
            if failure is not None:
                state.error = failure
            elif answer is None or code is not ErrorCode.NONE:
                self._retry(state, code, self._clock.monotonic_ms())
                return
            else:
                state.failures = 0
                state.validated_epoch = epoch
                if answer.end_offset == UNKNOWN or answer.end_offset < state.fetch_offset:
                    self._diverged(state, answer.leader_epoch, answer.end_offset)
        self._on_data()


def _encode(request: FetchRequest, correlation: int) -> Frame:
    return encode_fetch_request(correlation, request)
