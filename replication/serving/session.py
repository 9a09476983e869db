"""The leader's side of a follower's stream: one per (follower, this leader), many partitions per message.

The stream remembers state between fetches (the idea of KIP-227's sessions), so that the cost of a message depends on
the changes and not on the number of partitions:

- A partition that the follower *names* is armed at that position. It stays armed through answers without it.
- An answer that carries records, an error or a divergence for a partition disarms it: the follower names it again once
  it has processed the answer (written, flushed if necessary, or waited after an error). Naming is also the
  acknowledgement: everything before the named offset is replicated there.
- High watermark and log start travel with records; if they change alone, they go with the next answer, at the latest
  when the long poll ends (``replica.fetch.wait.max.ms``), and disarm nothing. A follower that names a partition ignores
  earlier answers, so marks sent alone are then sent once more.
- A new fetch ends the wait of an earlier one: that one is answered first, with what is available.

- If a follower names an offset again after it was sent records for it, it may have found them damaged or missing. The
  leader then checks the CRC, offsets and epochs of the records before it sends them, and examines the log there if they
  are wrong.

- A throttled partition whose follower is not in sync (:mod:`tidelog.replication.following.throttle`) is *held back*
  while the throttle has no room: it is armed and waits next to the ready ones until a timer checks it again.

An append only marks its partition's entries here; one wake-up per event loop iteration answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_NODE, NO_OFFSET, BrokerEpoch, TopicIdPartition
from tidelog.proto.transport.frames import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_request,
    encode_fetch_response,
)
from tidelog.proto.transport.network import BadFrame, Frame
from tidelog.replication.following.throttle import Throttle
from tidelog.replication.partition.answers import diverged, fetched, refused_fetch
from tidelog.replication.partition.isr import IsrProposal
from tidelog.replication.partition.leader import BrokerEpochOf, Diverging, FollowerContact
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.settings import ReplicationSettings
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.segments.log_read import LogRead


class SessionOwner(Protocol):
    """The methods that a session needs of its node."""

    @property
    def replicas(self) -> Mapping[TopicIdPartition, Replica]: ...
    @property
    def settings(self) -> ReplicationSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def broker_epoch_of(self) -> BrokerEpochOf: ...
    @property
    def leader_throttle(self) -> Throttle: ...

    def isr_change_wanted(self, replica: Replica, proposal: IsrProposal) -> None: ...
    def disk_failed(self, replica: Replica, failure: LogDirFailed) -> None: ...
    def session_closed(self, session: ReplicaSession) -> None: ...


class FetchEntry:
    """One partition on one follower's stream. Implements
    :class:`~tidelog.replication.partition.replica.FollowerWatch`."""

    __slots__ = (
        "armed",
        "doubted",
        "item",
        "marks_alone",
        "replica",
        "sent_high_watermark",
        "sent_log_start",
        "session",
    )

    def __init__(self, session: ReplicaSession, replica: Replica, item: FetchPartition) -> None:
        self.session = session
        self.replica = replica
        self.item = item
        self.armed = False
        self.doubted = False
        """Whether the follower named an offset again after records were sent for it."""
        self.sent_high_watermark = NO_OFFSET
        self.sent_log_start = NO_OFFSET
        self.marks_alone = False
        """Whether marks were sent without records since the partition was named; the follower may skip that answer."""

    def log_moved(self) -> None:
        if self.armed:
            self.session.data_ready(self)

    def marks_moved(self) -> None:
        self.session.marks[self] = None


class _Parked:
    """A fetch that waits for news."""

    __slots__ = ("correlation", "future", "request", "timer")

    def __init__(self, correlation: int, request: FetchRequest, on_timeout: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.correlation = correlation
        self.request = request
        self.future: asyncio.Future[Frame] = loop.create_future()
        self.timer = loop.call_later(request.wait_ms_max / 1000, on_timeout)


class ReplicaSession:
    """Implements :class:`~tidelog.proto.transport.network.FrameSession` for REPLICA_FETCH."""

    def __init__(self, owner: SessionOwner) -> None:
        self._owner = owner
        self._entries: dict[TopicIdPartition, FetchEntry] = {}
        self._ready: dict[FetchEntry, None] = {}
        self._held_back: dict[FetchEntry, None] = {}
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._outbox: list[FetchedPartition] = []
        self._parked: _Parked | None = None
        self._wake_scheduled = False
        self._contact = FollowerContact(owner.clock.monotonic_ms())
        self._closed = False
        self.node = NO_NODE
        self.marks: dict[FetchEntry, None] = {}
        """Entries whose high watermark or log start the follower does not know yet."""
        self.bytes_sent = 0

    # --- from the carrier ---------------------------------------------------------------------------

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame:
        correlation, request = decode_fetch_request(frame)
        if request.replica_id < 0:
            raise BadFrame(f"expected a follower's node id, found {request.replica_id}")
        if self.node == NO_NODE:
            self.node = request.replica_id
        elif self.node != request.replica_id:
            raise BadFrame(f"expected replica id {self.node} on this stream, found {request.replica_id}")
        if self._parked is not None:
            self._answer()
        known = self._owner.broker_epoch_of(request.replica_id)
        if known > request.replica_epoch:
            return encode_fetch_response(correlation, FetchResponse(ErrorCode.STALE_BROKER_EPOCH, ()))
        now_ms = self._owner.clock.monotonic_ms()
        self._contact.last_fetch_ms = now_ms
        for topic_id, partition in request.forgotten:
            self._forget(TopicIdPartition(topic_id, partition))
        for item in request.partitions:
            self._name(item, request.replica_epoch, now_ms)
        if self._ready or self._outbox or request.wait_ms_max == 0:
            return self._build(correlation, request)
        self._parked = _Parked(correlation, request, self._answer)
        return self._parked.future

    def on_close(self) -> None:
        self._closed = True
        if self._parked is not None:
            self._parked.timer.cancel()
            self._parked.future.cancel()
            self._parked = None
        for key in tuple(self._entries):
            self._forget(key)
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
        self._owner.session_closed(self)

    # --- from replicas ------------------------------------------------------------------------------

    def data_ready(self, entry: FetchEntry) -> None:
        """Note that an armed entry has news; the answer goes out at the end of this event loop iteration."""
        if entry.replica.leader_throttled and self._is_held_back(entry):
            return
        self._ready[entry] = None
        if self._parked is not None and not self._wake_scheduled:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_scheduled = False
        if self._parked is not None and (self._ready or self._outbox):
            self._answer()

    # --- naming -------------------------------------------------------------------------------------

    def _name(self, item: FetchPartition, broker_epoch: BrokerEpoch, now_ms: int) -> None:
        """Record the follower's position in one partition, which is also its acknowledgement."""
        key = TopicIdPartition(item.topic_id, item.partition)
        replica = self._owner.replicas.get(key)
        if replica is None:
            self._forget(key)
            self._outbox.append(FetchedPartition(item.topic_id, item.partition, ErrorCode.UNKNOWN_TOPIC_ID))
            return
        partition = replica.partition
        verdict = partition.follower_fetch(self.node, broker_epoch, item, now_ms, self._contact)
        if verdict is not None:
            self._forget(key)
            if isinstance(verdict, Diverging):
                self._outbox.append(diverged(replica, verdict))
            else:
                self._refuse(replica, verdict)
            return
        entry = self._entries.get(key)
        if entry is None or entry.replica is not replica:
            entry = self._entries[key] = FetchEntry(self, replica, item)
        if entry.marks_alone:
            entry.marks_alone = False
            entry.sent_high_watermark = NO_OFFSET
        entry.doubted = not entry.armed and item.fetch_offset == entry.item.fetch_offset and item is not entry.item
        entry.item = item
        entry.armed = True
        replica.followers[self.node] = entry
        replica.settle()
        proposal = partition.propose_expansion(self.node)
        if proposal is not None:
            self._owner.isr_change_wanted(replica, proposal)
        log = partition.log
        if item.fetch_offset < log.log_end_offset and not (
            entry.replica.leader_throttled and self._is_held_back(entry)
        ):
            self._ready[entry] = None
        if partition.high_watermark != entry.sent_high_watermark or log.log_start_offset != entry.sent_log_start:
            self.marks[entry] = None

    def _forget(self, key: TopicIdPartition) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        entry.armed = False
        self._ready.pop(entry, None)
        self._held_back.pop(entry, None)
        self.marks.pop(entry, None)
        if entry.replica.followers.get(self.node) is entry:
            del entry.replica.followers[self.node]
            self._not_waited_for(entry)

    def _refuse(self, replica: Replica, refusal: Refusal) -> None:
        end = NO_OFFSET
        if refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            end = replica.partition.log.log_end_offset
        self._outbox.append(refused_fetch(replica, refusal.code, leader_log_end=end))

    # --- throttling -----------------------------------------------------------------------------------

    def _throttled(self, entry: FetchEntry) -> bool:
        """Return whether the throttle now applies to this partition's records for this follower."""
        if not entry.replica.leader_throttled:
            return False
        leading = entry.replica.partition.leading
        return leading is not None and self.node not in leading.isr.maximal

    def _is_held_back(self, entry: FetchEntry) -> bool:
        """Return whether the throttle has no room for it now; if so, a timer checks it again."""
        if not self._throttled(entry):
            self._held_back.pop(entry, None)
            return False
        throttle = self._owner.leader_throttle
        if throttle.room(self._owner.clock.monotonic_ms()):
            self._held_back.pop(entry, None)
            return False
        if entry not in self._held_back:
            self._held_back[entry] = None
            self._not_waited_for(entry)
        if self._throttle_timer is None:
            self._throttle_timer = asyncio.get_running_loop().call_later(
                throttle.wait_ms() / 1000, self._look_at_held_back
            )
        return True

    def _not_waited_for(self, entry: FetchEntry) -> None:
        """Exclude the follower from the high watermark's wait: that is for a replica about to join, not for one that
        may not catch up yet."""
        partition = entry.replica.partition
        if partition.leading is not None:
            partition.leading.stopped_fetching(self.node)
            if partition.advance(self._owner.clock.monotonic_ms()):
                entry.replica.settle()

    def _look_at_held_back(self) -> None:
        self._throttle_timer = None
        waiting, self._held_back = self._held_back, {}
        for entry in waiting:
            if entry.armed:
                self.data_ready(entry)

    # --- answering ----------------------------------------------------------------------------------

    def _answer(self) -> None:
        parked = self._parked
        if parked is None:
            return
        self._parked = None
        parked.timer.cancel()
        if not parked.future.done():
            parked.future.set_result(self._build(parked.correlation, parked.request))

    def _build(self, correlation: int, request: FetchRequest) -> Frame:
        """Build an answer from ready entries, oldest first, up to its maximum size; then add marks that have moved."""
        out = self._outbox
        self._outbox = []
        room = min(request.bytes_max, self._owner.settings.replica_fetch_response_max_bytes)
        sent = 0
        for entry in tuple(self._ready):
            if sent and room <= 0:
                break
            if entry.replica.leader_throttled and self._is_held_back(entry):
                self._ready.pop(entry, None)
                continue
            answer, size = self._read(entry, room, at_least_one=sent == 0)
            if answer is None:
                if entry.armed and size < 0:
                    break  # its next batch does not fit after the answer's other records
                self._ready.pop(entry, None)
                continue
            self._ready.pop(entry, None)
            out.append(answer)
            sent += size
            room -= size
        for entry in self.marks:
            if not isinstance(entry.replica.partition.led(entry.item.current_leader_epoch), Refusal):
                self._note_sent(entry)
                entry.marks_alone = True
                out.append(fetched(entry.replica))
        self.marks.clear()
        self.bytes_sent += sent
        return encode_fetch_response(correlation, FetchResponse(ErrorCode.NONE, out))

    def _read(self, entry: FetchEntry, room: int, *, at_least_one: bool) -> tuple[FetchedPartition | None, int]:
        """Return one entry's answer and its size; ``None`` with size 0: no news, with -1: does not fit now."""
        replica, item = entry.replica, entry.item
        partition = replica.partition
        if not entry.armed:
            return None, 0
        leading = partition.led(item.current_leader_epoch)
        if isinstance(leading, Refusal):
            self._forget(replica.key)
            return refused_fetch(replica, leading.code), 0
        if item.fetch_offset >= partition.log.log_end_offset:
            return None, 0
        throttle = self._owner.leader_throttle if self._throttled(entry) else None
        if throttle is not None:
            room = min(room, throttle.room(self._owner.clock.monotonic_ms()))
        try:
            read = partition.read_for_follower(item.fetch_offset, min(item.bytes_max, room), at_least_one=at_least_one)
        except LogDirFailed as failure:
            self._owner.disk_failed(replica, failure)
            self._forget(replica.key)
            return refused_fetch(replica, ErrorCode.KAFKA_STORAGE_ERROR), 0
        if isinstance(read, LogRead):
            read = partition.log.checked(read, item.fetch_offset, crcs=entry.doubted)
        if isinstance(read, Refusal):
            end = partition.log.log_end_offset
            self._forget(replica.key)
            return refused_fetch(replica, read.code, leader_log_end=end), 0
        if not len(read.records):
            return None, -1
        if throttle is not None:
            throttle.moved(len(read.records))
        entry.armed = False
        self.marks.pop(entry, None)
        self._note_sent(entry)
        return fetched(replica, (read.records,)), len(read.records)

    def _note_sent(self, entry: FetchEntry) -> None:
        partition = entry.replica.partition
        entry.sent_high_watermark = partition.high_watermark
        entry.sent_log_start = partition.log.log_start_offset
