"""Consumers' fetches: read below the high watermark, or wait for it to rise, and read each byte once.

With ``read_committed`` the last stable offset stands for the high watermark, which alone can make it rise: a
transaction is decided here once its marker is committed. The answer names the aborted transactions among what
it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import Offset, ProducerId, TopicIdPartition
from tidelog.proto.frames import FetchedPartition, FetchPartition, FetchRequest, FetchResponse, RecordsInFile
from tidelog.proto.network import Buffer
from tidelog.replication.answers import diverged, fetched, refused_fetch
from tidelog.replication.leader import Diverging
from tidelog.replication.replica import Replica
from tidelog.replication.settings import ReplicationSettings
from tidelog.storage.log_errors import LogDirFailed
from tidelog.storage.log_read import LogSpan

ReadFailed = Callable[[Replica, LogDirFailed], None]


class Consuming:
    """The leader's side of consumer fetches for all partitions of a node."""

    def __init__(
        self,
        replicas: Mapping[TopicIdPartition, Replica],
        settings: ReplicationSettings,
        failed: ReadFailed,
    ) -> None:
        self.replicas = replicas
        self.settings = settings
        self.failed = failed
        self.waiting = 0
        self.held_bytes = 0
        """What waiting fetches have read so far."""
        self.bytes = 0

    def fetch(self, request: FetchRequest, *, in_files: bool = False) -> asyncio.Future[FetchResponse]:
        """Answer at once when there is enough, an error, or no wish to wait; else when there is enough.

        "Enough" is ``bytes_min`` (at most ``fetch_min_bytes_max``). The answer is cut at the smaller of
        the request's ``bytes_max`` and ``fetch_max_bytes``, except that the first batch is always whole.
        ``in_files``: the records are left in their files; who gets the answer releases them. A future that
        is cancelled has released its own.
        """
        fetch = ConsumerFetch(self, request, in_files)
        fetch.begin()
        return fetch.future

    def may_wait(self, held: int) -> bool:
        settings = self.settings
        return self.waiting < settings.fetch_waiters_max and self.held_bytes + held <= settings.fetch_held_bytes_max


class _Part:
    """What one partition of a fetch has yielded so far."""

    __slots__ = ("answer", "item", "next_offset", "pieces", "replica", "size", "spans")

    def __init__(self, item: FetchPartition, replica: Replica | None) -> None:
        self.item = item
        self.replica = replica
        self.next_offset = item.fetch_offset
        self.pieces: list[Buffer] = []
        self.spans: list[RecordsInFile] = []
        self.size = 0
        self.answer: FetchedPartition | None = None
        """Set where this partition's answer is final: an error or a divergence."""


class ConsumerFetch:
    """One fetch from its arrival to its answer. What was read is kept, so no byte is read twice."""

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
        self._bytes_min = min(request.bytes_min, owner.settings.fetch_min_bytes_max, self._bytes_left)
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
        """Implements :class:`~tidelog.replication.replica.ReachWatch`."""
        for part in self._parts:
            if part.replica is replica:
                self._read(part)
        if not self._waits:
            return  # answered meanwhile: a read that failed has ended every wait on its directory
        self._hold()
        if self._is_enough() or self._owner.held_bytes > self._owner.settings.fetch_held_bytes_max:
            self._answer()

    def _is_enough(self) -> bool:
        return self._size >= self._bytes_min or any(part.answer is not None for part in self._parts)

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
        leading = partition.led(item.current_leader_epoch)
        if isinstance(leading, Refusal):
            part.answer = refused_fetch(replica, leading.code)
            return
        if not part.size:
            verdict = leading.agrees(item.fetch_offset, item.last_fetched_epoch)
            if isinstance(verdict, Diverging):
                part.answer = diverged(replica, verdict)
                return
            if verdict is not None:
                part.answer = refused_fetch(replica, verdict.code)
                return
        end = partition.fetchable_end(self._request.read_committed)
        room = min(item.bytes_max - part.size, self._bytes_left - self._size)
        if part.next_offset >= end or (room <= 0 and self._size > 0):
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
            part.answer = refused_fetch(replica, read.code)
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
        self._size += size

    def _answer(self) -> None:
        if self.future.done():
            return
        results = [self._result(part) for part in self._parts]
        if self.future.done():
            return  # answered meanwhile: a disk that failed under the last look has ended every wait
        self._owner.bytes += self._size
        for part, result in zip(self._parts, results, strict=True):
            if result.in_files:
                part.spans = []  # now the answer's
        self.future.set_result(FetchResponse(ErrorCode.NONE, results))
        self._release()
        self._leave(self.future)

    def _release(self) -> None:
        """Let go of what the answer does not hold."""
        for part in self._parts:
            for span in part.spans:
                span.release()
            part.spans = []

    def _result(self, part: _Part) -> FetchedPartition:
        if part.answer is not None:
            return part.answer
        assert part.replica is not None
        leading = part.replica.partition.led(part.item.current_leader_epoch)
        if isinstance(leading, Refusal):
            return refused_fetch(part.replica, leading.code)
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
