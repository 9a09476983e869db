"""Partitions' files of backups that their leaders here read themselves (``backup.dirs``).

A request begins a reading, or asks how far it is. What is read goes the same way as records that somebody sends
(:class:`~tidelog.replication.serving.importing.Importing`), so leadership, epochs and offsets are checked there, and
followers fetch as usual. The CRCs are compared once, where the file is read. A reading ends if nobody asks for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from tidelog.broker.logs.backup_places import AllowedPlaces, NotReadHere
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import Offset, TopicIdPartition
from tidelog.proto.backups.bringing import bring, examination_of
from tidelog.proto.backups.copying import Examination, Piece
from tidelog.proto.backups.manifest import BackupError, Damaged, PartitionPart
from tidelog.proto.calls.backup_api import ImportRecordsRequest, ImportRecordsResponse

AT_ONCE: Final = 8
"""How many files to read at a time; each holds two pieces in memory. Further ones wait."""
IDLE_MS: Final = 60_000
"""A reading about which nobody asks for so long ends."""
WAIT_MS_MAX: Final = 5_000
"""Longest time to the answer that a reading goes on."""
_AGAIN_S: Final = 0.2
_LATER: Final = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
"""Followers are late or missing: the reading tries again."""

_STOPPING: Final = ImportRecordsResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="this node is stopping")


class Take(Protocol):
    """Appends records as a leader."""

    def __call__(self, request: ImportRecordsRequest, *, checked: bool = False) -> Awaitable[ImportRecordsResponse]:
        """``checked``: this process has compared their CRCs."""


class _Ended(Exception):
    """A reading ends before the file does, with this answer."""

    def __init__(self, answer: ImportRecordsResponse) -> None:
        super().__init__(answer)
        self.answer = answer


class _Reading:
    """One file's. ``request``: the first one; ``end``: the log's."""

    __slots__ = ("asked_ms", "end", "examination", "part", "request", "task")

    def __init__(
        self, request: ImportRecordsRequest, end: Offset, examination: Examination, part: PartitionPart, now_ms: int
    ) -> None:
        self.request = request
        self.end = end
        self.examination = examination
        self.part = part
        self.asked_ms = now_ms
        self.task: asyncio.Task[ImportRecordsResponse]

    def answer(self, error: ErrorCode = ErrorCode.NONE, text: str = "") -> ImportRecordsResponse:
        """Return how far it is."""
        reads = error is ErrorCode.NONE
        return ImportRecordsResponse(error, self.end, text, reads=reads, read_bytes=self.examination.size)


class BackupReading:
    """See the module."""

    def __init__(
        self, directories: Sequence[str], take: Take, image: Callable[[], MetadataImage], clock: Clock
    ) -> None:
        self._places = AllowedPlaces(directories)
        self._take = take
        self._image = image
        self._clock = clock
        self._readings: dict[TopicIdPartition, _Reading] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self._closed = False

    async def ask(self, request: ImportRecordsRequest) -> ImportRecordsResponse:
        """Begin to read, or wait for what was begun. A repeated request does no harm."""
        self._forget_old()
        at = TopicIdPartition(request.topic_id, request.partition)
        reading = self._readings.get(at)
        if reading is None or reading.task.done():
            begun = await self._begin(at, request, reading)
            if isinstance(begun, ImportRecordsResponse):
                return begun
            reading = begun
        if not _alike(reading.request, request):
            text = f"expected {reading.request.place} to be finished first, found {request.place}"
            return ImportRecordsResponse(ErrorCode.REQUEST_TIMED_OUT, error_message=text)
        reading.asked_ms = self._clock.monotonic_ms()
        await asyncio.wait({reading.task}, timeout=min(request.timeout_ms, WAIT_MS_MAX) / 1_000)
        if not reading.task.done():
            return reading.answer()
        if self._readings.get(at) is reading:
            del self._readings[at]
        if reading.task.cancelled():
            return _STOPPING
        return reading.task.result()

    def close(self) -> None:
        """End all readings, and begin no more."""
        self._closed = True
        for reading in self._readings.values():
            reading.task.cancel()
        self._readings.clear()

    async def _begin(
        self, at: TopicIdPartition, request: ImportRecordsRequest, ended: _Reading | None
    ) -> _Reading | ImportRecordsResponse:
        """Return a new reading, the one that somebody else has begun meanwhile, or the ``ended`` one if it has done
        what is asked for and the log is still the same: a deleted topic may have come back."""
        first = await self._take(replace(request, place="", records=b""))
        if first.error is not ErrorCode.NONE:
            return first
        if ended is not None and _alike(ended.request, request) and not ended.task.cancelled():
            result = ended.task.result()
            if result.done and result.log_end_offset == first.log_end_offset:
                return ended
        topic = self._image().topics.get(request.topic_id)
        if topic is None:
            return ImportRecordsResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="the topic is gone")
        try:
            place, part = await asyncio.to_thread(
                self._places.find, request.place, request.manifest_sha256, topic.name, request.partition
            )
        except NotReadHere as reason:
            return _not_read(reason)
        if self._closed:
            return _STOPPING
        known = self._readings.get(at)
        if known is not None and not known.task.done():
            return known
        reading = _Reading(
            request, first.log_end_offset, examination_of(place, topic.name, part), part, self._clock.monotonic_ms()
        )
        self._readings[at] = reading
        reading.task = asyncio.create_task(self._run(reading))
        return reading

    async def _run(self, reading: _Reading) -> ImportRecordsResponse:
        async with self._room:
            try:
                await bring(reading.examination, reading.part, reading.end, partial(self._put, reading))
            except _Ended as ended:
                return ended.answer
            except Damaged as damage:
                return reading.answer(ErrorCode.CORRUPT_MESSAGE, str(damage))
            except (BackupError, OSError) as error:
                return _not_read(error)
        return replace(reading.answer(), done=True)

    async def _put(self, reading: _Reading, end: int, piece: Piece) -> None:
        """Append a piece as if somebody had sent it. Raises :class:`_Ended`."""
        request = replace(reading.request, place="", log_end_offset=Offset(end), records=piece.batches)
        while True:
            if self._clock.monotonic_ms() - reading.asked_ms > IDLE_MS:
                text = f"nobody has asked for {IDLE_MS} ms"
                raise _Ended(reading.answer(ErrorCode.REQUEST_TIMED_OUT, text))
            answer = await self._take(request, checked=True)
            if answer.error is ErrorCode.NONE:
                break
            if answer.error not in _LATER:
                raise _Ended(answer)
            await asyncio.sleep(_AGAIN_S)
        reading.end = piece.end

    def _forget_old(self) -> None:
        """Drop results that nobody came for."""
        before_ms = self._clock.monotonic_ms() - IDLE_MS
        for at, reading in tuple(self._readings.items()):
            if reading.task.done() and reading.asked_ms < before_ms:
                del self._readings[at]


def _alike(one: ImportRecordsRequest, other: ImportRecordsRequest) -> bool:
    return (one.leader_epoch, one.place, one.manifest_sha256) == (
        other.leader_epoch,
        other.place,
        other.manifest_sha256,
    )


def _not_read(reason: Exception) -> ImportRecordsResponse:
    return ImportRecordsResponse(ErrorCode.POLICY_VIOLATION, error_message=str(reason))
