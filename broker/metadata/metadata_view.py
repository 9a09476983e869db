"""A node's view of the cluster: its newest metadata image, and the listeners for the next one.

It has two kinds of feed: a combined node takes images from its own controller; a broker alone pulls committed entries
from any controller by offset and epoch, or a snapshot if it is too far behind or on another branch (KIP-595, KIP-630).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.metadata_quorum.image.change import MetadataDelta, apply_records, difference
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.snapshot import BadSnapshot, decode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.model.features import METADATA_VERSION
from tidelog.model.ids import ControllerEpoch, NodeId, Offset
from tidelog.proto.calls.controller_api import FetchMetadataRequest, FetchMetadataResponse, FetchMetadataSnapshotRequest
from tidelog.proto.logs.metadata_codec import decode_batch
from tidelog.proto.logs.record_levels import REQUEST_GATES
from tidelog.proto.transport.network import CallTimeout, ConnectionLost

log = logging.getLogger(__name__)

Listener = Callable[[MetadataImage, MetadataDelta], Iterable[None]]
"""Acts on a new image, in steps of some milliseconds."""
Shown = Callable[[MetadataImage], bool]

FETCH_WAIT_MS: Final = 2_000
"""How long a controller holds an unanswered fetch at most."""
ANSWER_SLACK_S: Final = 1.0
RETRY_PAUSE_S: Final = 0.05
LEVELS_S: Final = 10.0
"""For the feature levels of a new cluster."""
SNAPSHOT_BYTES_MAX: Final = 2**31
QUEUED_MAX: Final = 1_000
"""Maximum queued images; beyond it, they are merged into one change."""


class MetadataView:
    """The image in force. It has one writer: its feed.

    Listeners are not called until it is *opened*: what a starting node replays is the past, and a topic that was
    created and deleted in it must not be created again. A broker opens it once the controller says that the image
    contains its own registration, so it never acts on earlier decisions.

    A listener acts in steps, and the event loop runs between them, because a change of thousands of partitions must not
    delay a heartbeat. Images that arrive in the meantime are queued.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        """The newest image that listeners have begun to act on."""
        self.applied_offset = self.image.offset
        """The offset of the newest image that every listener has finished acting on."""
        self.opened = False
        self._listeners: list[Listener] = []
        self._waiting: dict[asyncio.Future[None], Shown] = {}
        self._queue: deque[tuple[MetadataImage, MetadataDelta]] = deque()
        self._steps: Iterator[None] | None = None
        self._wake = asyncio.Event()

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` with each new image and what changed, in order, on the event loop."""
        self._listeners.append(listener)

    def open(self) -> None:
        """Tell listeners about everything in the image, and from now on about each change."""
        assert not self.opened, "a metadata view opens once"
        self.opened = True
        self._begin(self.image, difference(MetadataImage(), self.image))

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Put a newer image in force: now, unless an earlier one is still being acted on."""
        if self._steps is None:
            self._begin(image, delta)
            return
        self._queue.append((image, delta))
        if len(self._queue) > QUEUED_MAX:
            self._queue.clear()
            self._queue.append((image, difference(self.image, image)))

    async def run(self) -> None:
        """Continue work that did not fit into one step, until the node ends."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._steps is not None:
                await asyncio.sleep(0)
                self._go_on()

    def close(self) -> None:
        """Stop calling listeners."""
        self._listeners.clear()
        self._steps = None
        self._queue.clear()

    async def wait_until(self, shown: Shown, *, timeout_s: float | None) -> bool:
        """Wait for an image that ``shown`` accepts and every listener has acted on. Returns false on timeout."""
        if self._steps is None and shown(self.image):
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = shown
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            del self._waiting[future]
        return True

    async def gate_fault(self, request: type[Any]) -> str | None:
        """Why the levels in use do not allow requests of this kind. A cluster that has just begun has none yet, and
        soon those that it begins with."""
        if METADATA_VERSION not in self.image.features:
            await self.wait_until(lambda image: METADATA_VERSION in image.features, timeout_s=LEVELS_S)
        return REQUEST_GATES[request].fault(self.image.features)

    def _begin(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.image = image
        self._steps = self._work(image, delta)
        self._go_on()

    def _go_on(self) -> None:
        """Do one step; after the last step of an image, start the next."""
        while self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
                self._applied()
                if self._queue:
                    image, delta = self._queue.popleft()
                    self.image = image
                    self._steps = self._work(image, delta)
                continue
            self._wake.set()
            return

    def _work(self, image: MetadataImage, delta: MetadataDelta) -> Iterator[None]:
        if self.opened:
            for listener in list(self._listeners):
                yield from listener(image, delta)

    def _applied(self) -> None:
        self.applied_offset = self.image.offset
        for future, shown in list(self._waiting.items()):
            if not future.done() and shown(self.image):
                future.set_result(None)


class RemoteFeed:
    """Pulls metadata over the network into a view, for a node without the controller role."""

    def __init__(self, node_id: NodeId, view: MetadataView, channel: ControllerChannel, rng: random.Random) -> None:
        self._node_id = node_id
        self._view = view
        self._channel = channel
        self._rng = rng
        self._newest = view.image
        self._order = channel.voters()
        self._at = rng.randrange(len(self._order))

    async def run(self) -> None:
        """Pull until the node ends."""
        while True:
            voter = self._order[self._at]
            image = self._newest
            request = FetchMetadataRequest(self._node_id, Offset(image.offset + 1), image.epoch, FETCH_WAIT_MS)
            try:
                answer = await self._channel.ask(voter, request, FETCH_WAIT_MS / 1000 + ANSWER_SLACK_S)
                taken = await self._take(voter, answer)
            except (ConnectionLost, CallTimeout) as error:
                log.info("metadata from controller %d: %s", voter, error)
                taken = False
            if not taken:
                self._at = (self._at + 1) % len(self._order)
                await asyncio.sleep(RETRY_PAUSE_S * (0.5 + self._rng.random()))

    async def _take(self, voter: NodeId, answer: FetchMetadataResponse) -> bool:
        if answer.epoch >= 0:
            self._channel.leader_is(answer.leader_id, answer.epoch)
        if answer.error is not ErrorCode.NONE:
            return False
        if answer.snapshot_offset >= 0:
            return await self._load(voter, answer.snapshot_offset, answer.snapshot_epoch)
        for entry in answer.entries:
            known = self._newest.offset
            if entry.offset <= known:
                log.warning("expected metadata after %d, found entry %d: asking again", known, entry.offset)
                return False
            records = decode_batch(entry.records) if entry.records else ()
            self._newest, delta = apply_records(self._newest, records, entry.offset, entry.epoch)
            self._view.publish(self._newest, delta)
        return True

    async def _load(self, voter: NodeId, offset: Offset, epoch: ControllerEpoch) -> bool:
        if offset < self._newest.offset:
            log.warning("controller %d offers a snapshot at %d, below ours at %d", voter, offset, self._newest.offset)
            return False
        chunks = bytearray()
        while True:
            request = FetchMetadataSnapshotRequest(self._node_id, offset, epoch, len(chunks))
            answer = await self._channel.ask(voter, request, FETCH_WAIT_MS / 1000 + ANSWER_SLACK_S)
            if answer.error is not ErrorCode.NONE or answer.size > SNAPSHOT_BYTES_MAX:
                return False
            chunks += answer.chunk
            if len(chunks) >= answer.size:
                break
            if not answer.chunk:
                return False
        try:
            image = decode_snapshot(memoryview(chunks))
        except BadSnapshot as error:
            log.warning("controller %d: %s", voter, error)
            return False
        delta = difference(self._newest, image)
        self._newest = image
        self._view.publish(image, delta)
        return True
