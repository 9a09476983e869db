"""ISR changes on their way to the active controller: gathered, sent one request at a time, repeated.

A request that found no controller is sent again; it is fenced by its partition epoch, so a repetition
of one that took effect is refused and changes nothing. Source: Kafka's ``DefaultAlterPartitionManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidelog.broker.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, NodeId, TopicIdPartition
from tidelog.proto.api import AlteredPartition, AlterPartitionItem, AlterPartitionRequest

log = logging.getLogger(__name__)

TRY_TIMEOUT_S: Final = 10.0
RETRY_PAUSE_S: Final = 0.05
ITEMS_MAX: Final = 2_000
"""Most partitions of one request; the rest goes with the next."""


class AlterPartitionSender:
    """Takes ISR changes, one per partition at a time, and hands back what the controller made of each."""

    def __init__(self, node_id: NodeId, channel: ControllerChannel, broker_epoch: Callable[[], BrokerEpoch]) -> None:
        self._node_id = node_id
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._waiting: dict[TopicIdPartition, tuple[AlterPartitionItem, asyncio.Future[AlteredPartition]]] = {}
        self._wake = asyncio.Event()

    def submit(self, item: AlterPartitionItem) -> asyncio.Future[AlteredPartition]:
        """Queue a change; the future yields the controller's answer for the partition.

        A change of the same partition that was not sent yet is replaced; its future is cancelled.
        """
        key = TopicIdPartition(item.topic_id, item.partition)
        future: asyncio.Future[AlteredPartition] = asyncio.get_running_loop().create_future()
        earlier = self._waiting.get(key)
        if earlier is not None:
            earlier[1].cancel()
        self._waiting[key] = (item, future)
        self._wake.set()
        return future

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self) -> None:
        """Send for as long as the node lives."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                if not await self._send():
                    await asyncio.sleep(RETRY_PAUSE_S)

    async def _send(self) -> bool:
        keys = [key for key, (_, future) in self._waiting.items() if not future.done()][:ITEMS_MAX]
        for key in [key for key, (_, future) in self._waiting.items() if future.done()]:
            del self._waiting[key]
        if not keys:
            return True
        batch = {key: self._waiting[key] for key in keys}
        epoch = self._broker_epoch()
        if epoch < 0:
            return False
        request = AlterPartitionRequest(self._node_id, epoch, tuple(item for item, _ in batch.values()))
        try:
            answer = await self._channel.call(request, timeout_s=TRY_TIMEOUT_S)
        except ControllerUnavailable as error:
            log.info("ISR changes of %d partitions wait: %s", len(batch), error)
            return False
        if answer.error is not ErrorCode.NONE:
            log.info("the controller refused ISR changes as a whole: %s", answer.error.name)
            return False
        for found in answer.partitions:
            key = TopicIdPartition(found.topic_id, found.partition)
            sent = batch.pop(key, None)
            if sent is None:
                continue
            if self._waiting.get(key) is sent:
                del self._waiting[key]
            if not sent[1].done():
                sent[1].set_result(found)
        return not batch
