"""Consumers' fetches: read below the high watermark, or wait for it to rise, and read each byte once.

A consumer that names its rack may be told a follower there to read from, and a follower serves it as a leader does, up
to its own high watermark (KIP-392).

With ``read_committed`` the last stable offset takes the place of the high watermark. It rises only with the high
watermark, because a transaction is decided here once its marker is committed. The answer names the aborted transactions
among its records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_LEADER_EPOCH, NO_NODE, Offset, ProducerId, TopicIdPartition
from tidelog.proto.transport.frames import (
    ANY_REPLICA,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    RecordsInFile,
)
from tidelog.replication.partition.answers import diverged, fetched, refused_by_follower, refused_fetch
from tidelog.replication.partition.follower import FollowerState, check_position
from tidelog.replication.partition.leader import Diverging, LeaderState, RackOf
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.settings import ReplicationSettings
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.segments.log_read import LogSpan

ReadFailed = Callable[[Replica, LogDirFailed], None]


class Consuming:
    """The leader's side of consumer fetches for all partitions of a node."""

    def __init__(
        self,
        replicas: Mapping[TopicIdPartition, Replica],
        settings: ReplicationSettings,
        failed: ReadFailed,
        rack_of: RackOf | None = None,
    ) -> None:
        """With ``rack_of``, leaders send consumers to followers in their racks."""
        self.rack_of = rack_of
        self.serves_nearby = True
        """Whether followers here serve consumers of their rack; not while this broker may be cut off."""
        self.replicas = replicas
        self.settings = settings
        self.failed = failed
        self.waiting = 0
        self.held_bytes = 0
        """Bytes that waiting fetches have read so far."""
        self.bytes = 0

    def fetch(self, request: FetchRequest, *, in_files: bool = False) -> asyncio.Future[FetchResponse]:
        """Answer at once if there is enough, an error, or no wish to wait; otherwise once there is enough.

        "Enough" is ``bytes_min``. The answer is cut at the smaller of the request's ``bytes_max`` and
        ``fetch_max_bytes``, except that the first batch is always whole; a full answer is always enough.
        ``in_files``: the records stay in their files; the answer's receiver releases them. A cancelled future has
        released its own.
        """
        if request.replica_id == ANY_REPLICA:
            answered: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
            answered.set_result(self._read_any(request))
            return answered
        fetch = ConsumerFetch(self, request, in_files)
        fetch.begin()
        return fetch.future

    def _read_any(self, request: FetchRequest) -> FetchResponse:
        """Read from replicas here, whatever their role, up to their high watermark, and always check CRCs: for other
        replicas that mend themselves."""
        left, found = min(request.bytes_max, self.settings.fetch_max_bytes), []
        for item in request.partitions:
            found.append(self._read_one(item, left))
            left = max(left - sum(map(len, found[-1].records)), 0)
        return FetchResponse(ErrorCode.NONE, found)

    def _read_one(self, item: FetchPartition, bytes_max: int) -> FetchedPartition:
        replica = self.replicas.get(TopicIdPartition(item.topic_id, item.partition))
        if replica is None:
            return FetchedPartition(item.topic_id, item.partition, ErrorCode.UNKNOWN_TOPIC_ID)
        partition = replica.partition
        if partition.offline:
            return refused_fetch(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        room, mark = min(bytes_max, item.bytes_max), partition.high_watermark
        try:
            read = partition.log.read(item.fetch_offset, room, offset_end=mark, at_least_one=bytes_max > 0)
        except LogDirFailed as failure:
            self.failed(replica, failure)
            return refused_fetch(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        if not isinstance(read, Refusal):
            read = partition.log.checked(read, item.fetch_offset)
        if isinstance(read, Refusal):
            return refused_fetch(replica, read.code)
        return fetched(replica, (read.records,) if len(read.records) else ())

    def may_wait(self, held: int) -> bool:
        settings = self.settings
        return self.waiting < settings.fetch_waiters_max and self.held_bytes + held <= settings.fetch_held_bytes_max


class _Part:
    """The result of one partition of a fetch so far."""

    __slots__ = ("answer", "cut", "epoch", "item", "next_offset", "pieces", "replica", "size", "spans")

    def __init__(self, item: FetchPartition, replica: Replica | None) -> None:
        self.item = item
        self.replica = replica
        self.next_offset = item.fetch_offset
        self.pieces: list[Buffer] = []
        self.spans: list[RecordsInFile] = []
        self.size = 0
        self.epoch = NO_LEADER_EPOCH if replica is None else replica.partition.leader_epoch
        """The partition's when the fetch came."""
        self.cut = False
        """There is more to read than fits."""
        self.answer: FetchedPartition | None = None
        """Set if this partition's answer is final: an error or a divergence."""


class ConsumerFetch:
    """One fetch from its arrival to its answer. It keeps its data, so no byte is read twice."""

    __slots__ = (
        "_bytes_left",
        "_bytes_min",
        "_held",
        "_in_files",
        "_owner",
        "_parts",
        "_request",
        "_size",
        "_timer",
        "_waits",
        "future",
    )

    def __init__(self, owner: Consuming, request: FetchRequest, in_files: bool) -> None:
        self._owner = owner
        self._in_files = in_files
        self._request = request
        self._bytes_left = min(request.bytes_max, owner.settings.fetch_max_bytes)
        self._bytes_min = min(request.bytes_min, self._bytes_left)
        self._size = 0
        self._held = 0
        self._waits = False
        self._timer: asyncio.TimerHandle | None = None
        self._parts = [
            _Part(item, owner.replicas.get(TopicIdPartition(item.topic_id, item.partition)))
            for item in request.partitions
        ]
        self.future: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        for part in self._parts:
            self._read(part)
        wait_ms = self._request.wait_ms_max
        if self._is_enough() or wait_ms <= 0 or not self._parts or not self._owner.may_wait(self._size):
            self._answer()
            return
        self._waits = True
        self._owner.waiting += 1
        self._hold()
        for part in self._parts:
            if part.replica is not None:
                part.replica.consumers[self] = None
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._answer)
        self.future.add_done_callback(self._leave)

    def reached(self, replica: Replica) -> None:
        """Implements :class:`~tidelog.replication.partition.replica.ReachWatch`."""
        for part in self._parts:
            if part.replica is replica:
                self._read(part)
        if not self._waits:
            return  # answered meanwhile: a failed read has ended every wait on its directory
        self._hold()
        if self._is_enough() or self._owner.held_bytes > self._owner.settings.fetch_held_bytes_max:
            self._answer()

    def _is_enough(self) -> bool:
        """What did not fit as a whole batch counts too, as in Kafka's ``DelayedFetch.tryComplete``."""
        if self._size >= self._bytes_min or any(part.answer is not None for part in self._parts):
            return True
        rooms = ((part.size, min(part.item.bytes_max, self._bytes_left)) for part in self._parts if part.cut)
        return self._size + sum(max(room - size, 0) for size, room in rooms) >= self._bytes_min

    def _hold(self) -> None:
        self._owner.held_bytes += self._size - self._held
        self._held = self._size

    def _read(self, part: _Part) -> None:
        """Read on in one partition as far as it has become readable."""
        if part.answer is not None:
            return
        replica, item = part.replica, part.item
        if replica is None:
            part.answer = FetchedPartition(item.topic_id, item.partition, ErrorCode.UNKNOWN_TOPIC_ID)
            return
        partition = replica.partition
        serving = self._serving(part, replica)
        if isinstance(serving, FetchedPartition):
            part.answer = serving
            return
        if not part.size:
            part.answer = self._judged(replica, serving, item)
            if part.answer is not None:
                return
        end = partition.fetchable_end(self._request.read_committed)
        room = min(item.bytes_max - part.size, self._bytes_left - self._size)
        part.cut = part.next_offset < end
        if not part.cut or (room <= 0 and self._size > 0):
            return
        look = partition.log.find if self._in_files else partition.log.read
        try:
            read = look(part.next_offset, max(room, 0), offset_end=end, at_least_one=self._size == 0)
        except LogDirFailed as failure:
            self._owner.failed(replica, failure)
            part.answer = refused_fetch(replica, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        if read is None:
            return
        if isinstance(read, Refusal):
            part.answer = refused_fetch(replica, partition.read_error(read))
            return
        if isinstance(read, LogSpan):
            size = read.size
            part.spans.append(read)
        else:
            size = len(read.records)
            if not size:
                return
            part.pieces.append(read.records)
        part.size += size
        part.next_offset = read.next_offset
        part.cut = read.next_offset < end
        self._size += size

    def _serving(self, part: _Part, replica: Replica) -> LeaderState | FollowerState | FetchedPartition:
        """The role in which this node serves the partition, or the answer that it does not."""
        nearby = bool(self._request.rack) and self._owner.serves_nearby
        serving = replica.partition.serves(part.item.current_leader_epoch, nearby=nearby)
        if isinstance(serving, Refusal):
            return refused_fetch(replica, serving.code)
        if isinstance(serving, FollowerState) and serving.epoch != part.epoch:  # what was read may have been cut off
            return refused_fetch(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return serving

    def _judged(
        self, replica: Replica, serving: LeaderState | FollowerState, item: FetchPartition
    ) -> FetchedPartition | None:
        """The final answer to a position from which nothing is read here."""
        if isinstance(serving, FollowerState):
            refusal = check_position(replica.partition.log, item.fetch_offset, item.last_fetched_epoch)
            return None if refusal is None else refused_by_follower(replica, refusal.code)
        verdict = serving.agrees(item.fetch_offset, item.last_fetched_epoch)
        if isinstance(verdict, Diverging):
            return diverged(replica, verdict)
        if verdict is not None:
            return refused_fetch(replica, verdict.code)
        if self._owner.rack_of is None or not self._request.rack:
            return None
        nearest = serving.nearest(self._request.rack, item.fetch_offset, self._owner.rack_of)
        return None if nearest == NO_NODE else fetched(replica, preferred_read_replica=nearest)

    def _answer(self) -> None:
        if self.future.done():
            return
        results = [self._result(part) for part in self._parts]
        if self.future.done():
            return  # answered meanwhile: a disk that failed during the last check has ended every wait
        self._owner.bytes += self._size
        for part, result in zip(self._parts, results, strict=True):
            if result.in_files:
                part.spans = []  # now the answer's
        self.future.set_result(FetchResponse(ErrorCode.NONE, results))
        self._release()
        self._leave(self.future)

    def _release(self) -> None:
        """Release the data that the answer does not hold."""
        for part in self._parts:
            for span in part.spans:
                span.release()
            part.spans = []

    def _result(self, part: _Part) -> FetchedPartition:
        if part.answer is not None:
            return part.answer
        assert part.replica is not None
        serving = self._serving(part, part.replica)
        if isinstance(serving, FetchedPartition):
            return serving
        if part.size and isinstance(serving, FollowerState):
            part.replica.partition.counts.nearby_reads += 1
        if not self._request.read_committed or not part.size:
            return fetched(part.replica, part.pieces, in_files=part.spans)
        try:
            found = part.replica.partition.log.aborted_within(part.item.fetch_offset, part.next_offset)
        except LogDirFailed as failure:
            self._owner.failed(part.replica, failure)
            return refused_fetch(part.replica, ErrorCode.KAFKA_STORAGE_ERROR)
        aborted = [(ProducerId(each.producer_id), Offset(each.first_offset)) for each in found]
        return fetched(part.replica, part.pieces, aborted, part.spans)

    def _leave(self, _: asyncio.Future[FetchResponse]) -> None:
        """Answered or cancelled: nobody may wake this again."""
        if not self._waits:
            return
        self._waits = False
        self._owner.waiting -= 1
        self._owner.held_bytes -= self._held
        if self._timer is not None:
            self._timer.cancel()
        for part in self._parts:
            if part.replica is not None:
                part.replica.consumers.pop(self, None)
        self._release()
        self._parts = []
