"""Serves committed metadata to brokers: entries by offset and epoch, or a snapshot if they are too far behind.

Every controller serves, active or not, so brokers keep up while there is no leader. Source: KIP-595's fetch and
KIP-630's FetchSnapshot, with one deviation: uncommitted entries are never sent, so brokers never have to undo any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.snapshot import snapshot_chunks
from tidelog.metadata_quorum.raft.committed_log import CommittedEntry, SnapshotNeeded
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, ControllerEpoch, NodeId, Offset
from tidelog.proto.calls.controller_api import (
    FetchMetadataRequest,
    FetchMetadataResponse,
    FetchMetadataSnapshotRequest,
    FetchMetadataSnapshotResponse,
    MetadataEntry,
)

FETCH_BYTES_MAX: Final = 1024 * 1024
"""Entry bytes in one answer; a single larger entry is sent alone."""
SNAPSHOT_CHUNK_BYTES: Final = 1024 * 1024
SNAPSHOTS_KEPT: Final = 2
"""Most snapshots being fetched; the least recently used one goes first."""
WAIT_MS_MAX: Final = 30_000
WAITING_MAX: Final = 10_000
"""Most fetches that wait at a time; beyond it they are answered immediately."""


class CommittedSource(Protocol):
    """The part of the quorum that the publisher reads."""

    def leader(self) -> tuple[NodeId | None, ControllerEpoch]: ...

    @property
    def commit_offset(self) -> Offset: ...

    def entries(
        self, from_offset: Offset, last_epoch: ControllerEpoch, bytes_max: int
    ) -> tuple[CommittedEntry, ...] | SnapshotNeeded: ...


class _Snapshot:
    """An image on its way to brokers; its bytes are built when the first broker asks for them."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.encoding: asyncio.Task[bytes] | None = None


async def encode_with_pauses(image: MetadataImage) -> bytes:
    """Encode a snapshot, yielding to the event loop between its chunks."""
    chunks: list[bytes] = []
    for chunk in snapshot_chunks(image):
        chunks.append(chunk)
        await asyncio.sleep(0)
    return b"".join(chunks)


class Publisher:
    """Serves entries and snapshots. ``image`` returns the committed image."""

    def __init__(self, source: CommittedSource, image: Callable[[], MetadataImage]) -> None:
        self._source = source
        self._image = image
        self._waiting: dict[asyncio.Future[None], None] = {}  # in order of arrival, which a set would not keep
        self._snapshots: dict[tuple[Offset, ControllerEpoch], _Snapshot] = {}
        self._closed = False

    def wake(self) -> None:
        """Wake the waiters, because an entry was committed, or the leader changed."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Answer all waiters, and refuse further waits."""
        self._closed = True
        self.wake()
        for snapshot in self._snapshots.values():
            if snapshot.encoding is not None:
                snapshot.encoding.cancel()
        self._snapshots.clear()

    async def fetch(self, request: FetchMetadataRequest) -> FetchMetadataResponse:
        """Answer with entries, as soon as there are any, or after ``wait_ms`` without. Brokers that are ahead of this
        controller get OFFSET_NOT_AVAILABLE: another controller will know more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(request.wait_ms, 0), WAIT_MS_MAX) / 1000
        while True:
            if request.fetch_offset > self._source.commit_offset + 1:
                return self._answer(ErrorCode.OFFSET_NOT_AVAILABLE)
            found = self._source.entries(request.fetch_offset, request.last_epoch, FETCH_BYTES_MAX)
            if isinstance(found, SnapshotNeeded):
                return self._offer_snapshot()
            left = deadline - loop.time()
            if found or left <= 0 or self._closed or len(self._waiting) >= WAITING_MAX:
                return self._answer(ErrorCode.NONE, found)
            if not await self._wait(left):
                return self._answer(ErrorCode.NONE)

    async def _wait(self, seconds: float) -> bool:
        """Wait for :meth:`wake`; return whether it came in time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(future, None)
        return True

    def _answer(self, error: ErrorCode, found: tuple[CommittedEntry, ...] = ()) -> FetchMetadataResponse:
        leader, epoch = self._source.leader()
        return FetchMetadataResponse(
            error=error,
            leader_id=NO_NODE if leader is None else leader,
            epoch=epoch,
            high_watermark=self._source.commit_offset,
            entries=tuple(MetadataEntry(entry.offset, entry.epoch, entry.payload) for entry in found),
        )

    def _offer_snapshot(self) -> FetchMetadataResponse:
        image = self._image()
        key = (image.offset, image.epoch)
        snapshot = self._snapshots.pop(key, None) or _Snapshot(image)
        self._keep(key, snapshot)
        leader, epoch = self._source.leader()
        return FetchMetadataResponse(
            error=ErrorCode.NONE,
            leader_id=NO_NODE if leader is None else leader,
            epoch=epoch,
            high_watermark=self._source.commit_offset,
            snapshot_offset=image.offset,
            snapshot_epoch=image.epoch,
        )

    def _keep(self, key: tuple[Offset, ControllerEpoch], snapshot: _Snapshot) -> None:
        """Keep a snapshot as the most recently used one."""
        self._snapshots[key] = snapshot
        while len(self._snapshots) > SNAPSHOTS_KEPT:
            oldest = self._snapshots.pop(next(iter(self._snapshots)))
            if oldest.encoding is not None:
                oldest.encoding.cancel()

    async def fetch_snapshot(self, request: FetchMetadataSnapshotRequest) -> FetchMetadataSnapshotResponse:
        """Answer with the part of a snapshot that begins at ``position``."""
        key = (request.snapshot_offset, request.snapshot_epoch)
        snapshot = self._snapshots.pop(key, None)
        if snapshot is None or self._closed:
            return FetchMetadataSnapshotResponse(ErrorCode.SNAPSHOT_NOT_FOUND)
        self._keep(key, snapshot)
        if snapshot.encoding is None:
            snapshot.encoding = asyncio.get_running_loop().create_task(encode_with_pauses(snapshot.image))
        encoding = snapshot.encoding
        await asyncio.wait((encoding,))
        if encoding.cancelled():
            return FetchMetadataSnapshotResponse(ErrorCode.SNAPSHOT_NOT_FOUND)
        data = encoding.result()
        if not 0 <= request.position <= len(data):
            return FetchMetadataSnapshotResponse(ErrorCode.POSITION_OUT_OF_RANGE, len(data))
        chunk = data[request.position : request.position + SNAPSHOT_CHUNK_BYTES]
        return FetchMetadataSnapshotResponse(ErrorCode.NONE, len(data), chunk)
