"""Reports this broker's log ends to the controller, for partitions that cannot get a leader otherwise.

If every safe candidate of a partition stopped uncleanly, the controller elects the replica that lost the least
(:mod:`tidelog.metadata_quorum.controller.unclean_recovery`). Reports exist only in an active controller's memory, so
they are repeated until there is a leader. Until then, the log does not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.metadata_quorum.controller.partition_change import asks_for_log_ends
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    NO_LEADER_EPOCH,
    NO_NODE,
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    TopicIdPartition,
)
from tidelog.proto.calls.controller_api import LogEnd, ReportLogEndsRequest
from tidelog.replication.partition.partition import Partition
from tidelog.replication.partition.partition_state import PartitionState
from tidelog.storage.log.log import Log

logger = logging.getLogger(__name__)

TRY_TIMEOUT_S: Final = 10.0
GATHER_S: Final = 0.01
"""News about many partitions comes in portions: wait for more before reporting."""
REPEAT_PAUSE_S: Final = 0.25
"""First pause before repeating the same report; doubles up to the maximum."""
REPEAT_PAUSE_S_MAX: Final = 4.0
ITEMS_MAX: Final = 2_250
"""Maximum replicas per request, as for directories."""


def _reach(log: Log, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
    """Return the epoch of the log's last record, and its end. An epoch that does not exist yet is a flipped bit in a
    batch's header, which no CRC covers: then only earlier data counts."""
    end = log.log_end_offset
    for epoch, start in reversed(log.epoch_entries):
        if epoch <= leader_epoch:
            return LeaderEpoch(epoch), end
        end = Offset(start)
    return NO_LEADER_EPOCH, end


class LogEndReports:
    """Reports while a partition here needs it. The partitions of this broker bound it.

    ``image`` returns the image that replicas last acted on; ``partition_of`` a replica that has a log.
    """

    def __init__(
        self,
        node_id: NodeId,
        channel: ControllerChannel,
        broker_epoch: Callable[[], BrokerEpoch],
        image: Callable[[], MetadataImage],
        partition_of: Callable[[TopicIdPartition], Partition | None],
    ) -> None:
        self._node_id = node_id
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._image = image
        self._partition_of = partition_of
        self._leaderless: set[TopicIdPartition] = set()
        self._wake = asyncio.Event()

    def applied(self, states: Sequence[PartitionState]) -> None:
        """Note that replicas have adopted these states."""
        for state in states:
            if state.leader != NO_NODE:
                self._leaderless.discard(state.key)
            else:
                self._leaderless.add(state.key)
                self._wake.set()

    async def run(self) -> None:
        """Report until the node ends."""
        pause_s = REPEAT_PAUSE_S
        while True:
            self._wake.clear()
            ends = self._ends()
            for at in range(0, len(ends), ITEMS_MAX):
                await self._send(tuple(ends[at : at + ITEMS_MAX]))
            try:
                async with asyncio.timeout(pause_s if ends else None):
                    await self._wake.wait()
                pause_s = REPEAT_PAUSE_S
                await asyncio.sleep(GATHER_S)
            except TimeoutError:
                pause_s = min(2 * pause_s, REPEAT_PAUSE_S_MAX)

    def _ends(self) -> list[LogEnd]:
        """Return the log ends to report now."""
        image = self._image()
        ends: list[LogEnd] = []
        for key in sorted(self._leaderless):
            found = image.partition(key.topic_id, key.partition)
            if found is None:
                self._leaderless.discard(key)
                continue
            partition = self._partition_of(key)
            # Until the replica has adopted exactly this state, its log may still grow.
            if not asks_for_log_ends(found) or partition is None or partition.offline:
                continue
            if partition.leader_epoch == found.leader_epoch:
                reach = _reach(partition.log, found.leader_epoch)
                ends.append(LogEnd(key.topic_id, key.partition, found.leader_epoch, *reach))
        return ends

    async def _send(self, ends: tuple[LogEnd, ...]) -> None:
        epoch = self._broker_epoch()
        if epoch < 0:
            return
        try:
            answer = await self._channel.call(ReportLogEndsRequest(self._node_id, epoch, ends), timeout_s=TRY_TIMEOUT_S)
        except ControllerUnavailable as error:
            logger.info("log ends of %d replicas: %s; trying again", len(ends), error)
            return
        if answer.error is not ErrorCode.NONE:
            logger.info("log ends of %d replicas: %s; trying again", len(ends), answer.error.name)
