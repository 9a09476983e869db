"""One fetch of a consumer, from its arrival to its answer.

It reads its partitions, waits if that is not enough, and answers; many partitions are read, and answered, in slices. If
a partition moves meanwhile, its read continues immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import (
    NO_LEADER_EPOCH,
    NO_NODE,
    NO_OFFSET,
    LeaderEpoch,
    Offset,
    ProducerId,
    TopicId,
    TopicIdPartition,
)
from tidelog.proto.records.header_filter import HeaderMask
from tidelog.proto.transport.frames import FetchedPartition, FetchRequest, FetchResponse, RecordsInFile
from tidelog.replication.partition.answers import diverged, fetched, refused_by_follower, refused_fetch
from tidelog.replication.partition.follower import FollowerState, check_position
from tidelog.replication.partition.leader import Diverging, LeaderState, RackOf
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.settings import ReplicationSettings
from tidelog.replication.serving.slices import SLICE, WAIT, Sliced, Steps
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.segments.log_read import LogSpan

ReadFailed = Callable[[Replica, LogDirFailed], None]
PAGES_MAX: Final = 64
"""Most pages of filter indexes that one fetch reads, each of 339 blocks: some 5 ms. The next fetch goes on
from there."""
_NO_PIECES: Final[list[Buffer]] = []
_NO_SPANS: Final[list[RecordsInFile]] = []
"""Most partitions of a large fetch have no data: they share this list, and nothing is added to it."""


class Wanted(Protocol):
    """A partition and the position in it, as a request or a session holds them."""

    @property
    def topic_id(self) -> TopicId: ...
    @property
    def partition(self) -> int: ...
    @property
    def current_leader_epoch(self) -> LeaderEpoch: ...
    @property
    def fetch_offset(self) -> Offset: ...
    @property
    def last_fetched_epoch(self) -> LeaderEpoch: ...
    @property
    def bytes_max(self) -> int: ...


class Owner(Protocol):
    """State shared by all fetches of a node."""

    replicas: Mapping[TopicIdPartition, Replica]
    settings: ReplicationSettings
    failed: ReadFailed
    rack_of: RackOf | None
    serves_nearby: bool
    waiting: int
    held_bytes: int
    bytes: int

    def may_wait(self, held: int) -> bool: ...


class Part:
    """The result of one partition of a fetch so far."""

    __slots__ = ("answer", "cut", "epoch", "fetch", "item", "next_offset", "pieces", "replica", "size", "spans")

    def __init__(self, fetch: ConsumerFetch, item: Wanted, replica: Replica | None) -> None:
        self.fetch = fetch
        self.item = item
        self.replica = replica
        self.next_offset = item.fetch_offset
        self.pieces = _NO_PIECES
        self.spans = _NO_SPANS
        self.size = 0
        self.epoch = NO_LEADER_EPOCH if replica is None else replica.partition.leader_epoch
        """The partition's epoch when the fetch arrived."""
        self.cut = False
        """Whether there is more to read than fits."""
        self.answer: FetchedPartition | None = None
        """Set if this partition's answer is final: an error or a divergence."""

    def reached(self, replica: Replica) -> None:
        """Implements :class:`~tidelog.replication.partition.replica.ReachWatch`."""
        self.fetch.moved(self)


class ConsumerFetch:
    """See the module. It keeps its data, so that it reads no byte twice."""

    __slots__ = (
        "_bytes_left",
        "_bytes_min",
        "_cut",
        "_held",
        "_in_files",
        "_is_final",
        "_is_looking",
        "_owner",
        "_pages_left",
        "_parts",
        "_request",
        "_size",
        "_sliced",
        "_waits",
    )

    def __init__(self, owner: Owner, request: FetchRequest, in_files: bool) -> None:
        self._owner = owner
        self._in_files = in_files
        self._request = request
        self._bytes_left = min(request.bytes_max, owner.settings.fetch_max_bytes)
        self._bytes_min = min(request.bytes_min, self._bytes_left)
        self._size = 0
        self._pages_left = PAGES_MAX
        self._held = 0
        self._is_looking = True
        self._waits = False
        self._is_final = False
        """Whether some partition has its final answer."""
        self._cut: dict[Part, None] = {}
        self._parts: list[Part] = []
        self._sliced: Sliced[FetchResponse] = Sliced(self._steps())

    def begin(self) -> asyncio.Future[FetchResponse]:
        return self._sliced.begin()

    def _steps(self) -> Steps[FetchResponse]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            yield from self._look_at_all()
            self._is_looking = False
            left_s = self._request.wait_ms_max / 1000 - (loop.time() - begun)
            if left_s > 0 and self._may_wait():
                yield from self._wait(left_s)
            results = yield from self._answer()
            self._owner.bytes += self._size
            return FetchResponse(ErrorCode.NONE, results)
        finally:
            self._leave()

    # --- Looking --------------------------------------------------------------------------------------

    def _look_at_all(self) -> Steps[None]:
        """Read the available records. If others get their turn meanwhile, each partition is watched from now on."""
        replicas, watches = self._owner.replicas, len(self._request.partitions) > SLICE
        for number, item in enumerate(self._request.partitions, 1):
            part = Part(self, item, replicas.get(TopicIdPartition(item.topic_id, item.partition)))
            self._parts.append(part)
            if watches and part.replica is not None:
                part.replica.consumers[part] = None
            self._read(part)
            if not number % SLICE:
                yield None

    def _may_wait(self) -> bool:
        return bool(self._parts) and not self._is_enough() and self._owner.may_wait(self._size)

    def _is_enough(self) -> bool:
        """Return whether there is enough to answer. A batch that did not fit counts too, as in Kafka's
        ``DelayedFetch.tryComplete``."""
        if self._size >= self._bytes_min or self._is_final:
            return True
        rooms = ((part.size, min(part.item.bytes_max, self._bytes_left)) for part in self._cut)
        return self._size + sum(max(room - size, 0) for size, room in rooms) >= self._bytes_min

    # --- Waiting --------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> Steps[None]:
        owner = self._owner
        self._watch()
        self._waits = True
        owner.waiting += 1
        self._hold()
        timer = asyncio.get_running_loop().call_later(seconds, self._sliced.go_on)
        try:
            yield WAIT
        finally:
            timer.cancel()
            self._waits = False
            owner.waiting -= 1
            owner.held_bytes -= self._held

    def _watch(self) -> None:
        for part in self._parts:
            if part.replica is not None:
                part.replica.consumers[part] = None

    def moved(self, part: Part) -> None:
        """Note that the readable end, a follower's position, or the role of the partition's replica changed."""
        if not (self._is_looking or self._waits):
            part.cut = True
            return
        self._read(part)
        if not self._waits:
            return  # already answered: a failed read has ended every wait on its directory
        self._hold()
        if self._is_enough() or self._owner.held_bytes > self._owner.settings.fetch_held_bytes_max:
            self._sliced.go_on()

    def _hold(self) -> None:
        self._owner.held_bytes += self._size - self._held
        self._held = self._size

    # --- Reading --------------------------------------------------------------------------------------

    def _read(self, part: Part) -> None:
        """Continue to read one partition as far as it has become readable."""
        if part.answer is None:
            part.answer = self._read_on(part)
        if part.answer is not None:
            self._is_final = True
        elif part.cut:
            self._cut[part] = None
        elif self._cut:
            self._cut.pop(part, None)

    def _read_on(self, part: Part) -> FetchedPartition | None:
        """Continue to read; return the answer if it is final."""
        replica, item = part.replica, part.item
        if replica is None:
            return FetchedPartition(item.topic_id, item.partition, ErrorCode.UNKNOWN_TOPIC_ID)
        partition = replica.partition
        serving = self._serving(part, replica)
        if isinstance(serving, FetchedPartition):
            return serving
        if not part.size and (answer := self._judged(replica, serving, item)) is not None:
            return answer
        end = partition.fetchable_end(self._request.read_committed)
        wanted = self._request.wanted
        return (
            self._read_to(part, replica, end, end) if wanted is None else self._read_wanted(part, replica, end, wanted)
        )

    def _read_wanted(self, part: Part, replica: Replica, end: Offset, wanted: HeaderMask) -> FetchedPartition | None:
        """Like :meth:`_read_to`, but skip what the filter does not want, as far as indexes tell."""
        part.cut = part.next_offset < end
        while part.cut and self._pages_left > 0:
            try:
                found = replica.partition.log.next_wanted(part.next_offset, end, wanted, self._pages_left)
            except LogDirFailed as failure:
                self._owner.failed(replica, failure)
                return refused_fetch(replica, ErrorCode.KAFKA_STORAGE_ERROR)
            self._pages_left -= max(found.pages, 1)
            part.next_offset = found.start
            part.cut = found.start < end
            if found.start < found.end:
                answer = self._read_to(part, replica, found.end, end)
                if answer is not None or part.next_offset == found.start:
                    return answer
        return None

    def _read_to(self, part: Part, replica: Replica, stop: Offset, end: Offset) -> FetchedPartition | None:
        """Read up to ``stop`` as far as there is room; ``end``: of what is readable."""
        partition, item = replica.partition, part.item
        room = min(item.bytes_max - part.size, self._bytes_left - self._size)
        part.cut = part.next_offset < end
        if not part.cut or (room <= 0 and self._size > 0):
            return None
        look = partition.log.find if self._in_files else partition.log.read
        try:
            read = look(part.next_offset, max(room, 0), offset_end=stop, at_least_one=self._size == 0)
        except LogDirFailed as failure:
            self._owner.failed(replica, failure)
            return refused_fetch(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        if read is None:
            return None
        if isinstance(read, Refusal):
            return refused_fetch(replica, partition.read_error(read))
        if isinstance(read, LogSpan):
            size = read.size
            if part.spans:
                part.spans.append(read)
            else:
                part.spans = [read]
        else:
            size = len(read.records)
            if not size:
                return None
            if part.pieces:
                part.pieces.append(read.records)
            else:
                part.pieces = [read.records]
        part.size += size
        part.next_offset = read.next_offset
        part.cut = read.next_offset < end
        self._size += size
        return None

    def _serving(self, part: Part, replica: Replica) -> LeaderState | FollowerState | FetchedPartition:
        """Return the role in which this node serves the partition, or the answer that it does not."""
        nearby = bool(self._request.rack) and self._owner.serves_nearby
        serving = replica.partition.serves(part.item.current_leader_epoch, nearby=nearby)
        if isinstance(serving, Refusal):
            return refused_fetch(replica, serving.code)
        if isinstance(serving, FollowerState) and serving.epoch != part.epoch:  # its records may have been truncated
            return refused_fetch(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return serving

    def _judged(self, replica: Replica, serving: LeaderState | FollowerState, item: Wanted) -> FetchedPartition | None:
        """Return the final answer for a position from which nothing is read here."""
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

    # --- Answering ------------------------------------------------------------------------------------

    def _answer(self) -> Steps[list[FetchedPartition]]:
        results: list[FetchedPartition] = []
        for number, part in enumerate(self._parts, 1):
            results.append(self._result(part))
            if not number % SLICE and number < len(self._parts):
                yield None
        for part, result in zip(self._parts, results, strict=True):
            if result.in_files:
                part.spans = _NO_SPANS  # the answer owns them now
        return results

    def _result(self, part: Part) -> FetchedPartition:
        if part.answer is not None:
            return part.answer
        assert part.replica is not None
        serving = self._serving(part, part.replica)
        if isinstance(serving, FetchedPartition):
            return serving
        if part.size and isinstance(serving, FollowerState):
            part.replica.partition.counts.nearby_reads += 1
        filtered_until = NO_OFFSET if self._request.wanted is None else part.next_offset
        if not self._request.read_committed or not part.size:
            return fetched(part.replica, part.pieces, in_files=part.spans, filtered_until=filtered_until)
        try:
            found = part.replica.partition.log.aborted_within(part.item.fetch_offset, part.next_offset)
        except LogDirFailed as failure:
            self._owner.failed(part.replica, failure)
            return refused_fetch(part.replica, ErrorCode.KAFKA_STORAGE_ERROR)
        aborted = [(ProducerId(each.producer_id), Offset(each.first_offset)) for each in found]
        return fetched(part.replica, part.pieces, aborted, part.spans, filtered_until=filtered_until)

    def _leave(self) -> None:
        """Stop watching after the answer or a cancellation, and release data that no answer holds."""
        self._is_looking = False
        self._unwatch()
        for part in self._parts:
            for span in part.spans:
                span.release()
        self._parts = []
        self._cut.clear()  # its parts hold this fetch, which holds the answer: a circle that only the collector ends

    def _unwatch(self) -> None:
        for part in self._parts:
            if part.replica is not None:
                part.replica.consumers.pop(part, None)
