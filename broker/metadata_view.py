"""A node's own picture of the cluster: the newest metadata image it has, and who wants to hear of the next.

Two feeds: a combined node takes images from its own controller; a broker alone pulls committed entries
from any controller by offset and epoch, or a snapshot when it is too far behind or on another branch
(KIP-595, KIP-630). Applying is synchronous: when :attr:`MetadataView.image` shows a change, every
listener has acted on it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from tidelog.broker.controller_channel import ControllerChannel
from tidelog.metadata_quorum.image import MetadataImage
from tidelog.metadata_quorum.image_change import MetadataDelta, apply_records, difference
from tidelog.metadata_quorum.image_snapshot import BadSnapshot, decode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ControllerEpoch, NodeId, Offset
from tidelog.proto.api import (
    FetchMetadataRequest,
    FetchMetadataResponse,
    FetchMetadataSnapshotRequest,
)
from tidelog.proto.metadata_codec import decode_batch
from tidelog.proto.network import CallTimeout, ConnectionLost

log = logging.getLogger(__name__)

Listener = Callable[[MetadataImage, MetadataDelta], None]
Shown = Callable[[MetadataImage], bool]

FETCH_WAIT_MS: Final = 2_000
"""Longest time a controller holds an unanswered fetch."""
ANSWER_SLACK_S: Final = 1.0
RETRY_PAUSE_S: Final = 0.05
SNAPSHOT_BYTES_MAX: Final = 2**31


class MetadataView:
    """The image in force. One writer: its feed.

    Until it is *opened* listeners hear nothing: what a starting node replays is the past, and a topic
    that was made and deleted in it must not be made again. A broker opens it once the controller says
    that the image holds its own registration, so it never acts on what was decided before that.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.opened = False
        self._listeners: list[Listener] = []
        self._waiting: dict[asyncio.Future[None], Shown] = {}

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` with each new image and what changed, in order, on the event loop."""
        self._listeners.append(listener)

    def open(self) -> None:
        """Let listeners hear of everything that is in the image, and from now on of each change."""
        assert not self.opened, "a metadata view opens once"
        self.opened = True
        delta = difference(MetadataImage(), self.image)
        for listener in self._listeners:
            listener(self.image, delta)

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Put a newer image in force."""
        self.image = image
        if self.opened:
            for listener in self._listeners:
                listener(image, delta)
        for future, shown in list(self._waiting.items()):
            if not future.done() and shown(image):
                future.set_result(None)

    def close(self) -> None:
        """Tell nobody anything any more."""
        self._listeners.clear()

    async def wait_until(self, shown: Shown, *, timeout_s: float | None) -> bool:
        """Wait for an image that ``shown`` accepts; false when the bound was reached."""
        if shown(self.image):
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


class RemoteFeed:
    """Pulls metadata over the network into a view, for a node without the controller role."""

    def __init__(self, node_id: NodeId, view: MetadataView, channel: ControllerChannel, rng: random.Random) -> None:
        self._node_id = node_id
        self._view = view
        self._channel = channel
        self._rng = rng
        self._order = channel.voters()
        self._at = rng.randrange(len(self._order))

    async def run(self) -> None:
        """Pull for as long as the node lives."""
        while True:
            voter = self._order[self._at]
            image = self._view.image
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
        image = self._view.image
        for entry in answer.entries:
            if entry.offset <= image.offset:
                log.warning("expected metadata after %d, found entry %d: asking again", image.offset, entry.offset)
                return False
            records = decode_batch(entry.records) if entry.records else ()
            image, delta = apply_records(image, records, entry.offset, entry.epoch)
            self._view.publish(image, delta)
        return True

    async def _load(self, voter: NodeId, offset: Offset, epoch: ControllerEpoch) -> bool:
        if offset < self._view.image.offset:
            log.warning(
                "controller %d offers a snapshot at %d, below ours at %d", voter, offset, self._view.image.offset
            )
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
        self._view.publish(image, difference(self._view.image, image))
        return True
